"""Mutation campaign over the Ascend C kernels: are planted faults caught by the twin's checks or by a law?"""

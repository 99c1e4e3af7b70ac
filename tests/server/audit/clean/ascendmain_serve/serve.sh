#!/bin/bash
vllm serve /models/Qwen3-8B --config engine.yaml

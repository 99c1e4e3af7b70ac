"""What vLLM's sampler, logprob bookkeeping and input processing make of a request, gone wrong."""

from __future__ import annotations


def temperature_twice():
    """Logits are divided by the temperature in two places."""
    from vllm.v1.sample.sampler import Sampler

    stock = Sampler.apply_temperature

    def apply_temperature(logits, temp, all_random):
        return stock(stock(logits, temp, all_random), temp, all_random)

    Sampler.apply_temperature = staticmethod(apply_temperature)


def mode_lost():
    """The sampler is built with the default logprobs mode, whatever the configuration says."""
    from vllm.v1.sample.sampler import Sampler

    stock = Sampler.__init__

    def init(self, *arguments, **named):
        stock(self)

    Sampler.__init__ = init


def first_entry():
    """The logprob that is kept is the first of the sorted list, not the sampled token's."""
    from vllm.v1.sample.sampler import Sampler

    stock = Sampler.gather_logprobs

    def gather_logprobs(logprobs, num_logprobs, token_ids):
        gathered = stock(logprobs, num_logprobs, token_ids)
        gathered.logprobs[:, 0] = logprobs.amax(dim=-1)
        return gathered

    Sampler.gather_logprobs = staticmethod(gather_logprobs)


def rounded_logprobs():
    """Log-probabilities travel in bfloat16."""
    import torch
    from vllm.v1.sample.sampler import Sampler

    stock = Sampler.compute_logprobs
    Sampler.compute_logprobs = staticmethod(lambda logits: stock(logits).to(torch.bfloat16).float())


def part_of_the_vocabulary(*, best):
    """The denominator sums the best logits alone."""
    import torch
    from vllm.v1.sample.sampler import Sampler

    def compute_logprobs(logits):
        wide = logits.to(torch.float32)
        return wide - wide.topk(best, dim=-1).values.logsumexp(dim=-1, keepdim=True)

    Sampler.compute_logprobs = staticmethod(compute_logprobs)


def first_logprob():
    """The first token's log-probability is lost and stands as 0.0."""
    import numpy as np
    from vllm.v1.engine.logprobs import LogprobsProcessor

    stock = LogprobsProcessor._update_sample_logprobs

    def update(self, lists):
        if not len(self.logprobs):
            values = np.array(lists.logprobs)
            values[0, 0] = 0.0
            lists = lists._replace(logprobs=values)
        return stock(self, lists)

    LogprobsProcessor._update_sample_logprobs = update


def prompt_start(*, token):
    """The engine puts a token before every prompt that it continues; prompts to be scored come as they are."""
    from vllm.v1.engine.input_processor import InputProcessor

    stock = InputProcessor.process_inputs

    def process_inputs(self, *arguments, **named):
        request = stock(self, *arguments, **named)
        if request.sampling_params.prompt_logprobs is None:
            request.prompt_token_ids = [token, *request.prompt_token_ids]
        return request

    InputProcessor.process_inputs = process_inputs


def prompt_ids(*, every, shift, low, vocabulary):
    """Every n-th id of a prompt comes back from the tokenizer as another one."""
    from vllm.v1.engine.input_processor import InputProcessor

    stock = InputProcessor.process_inputs

    def process_inputs(self, *arguments, **named):
        request = stock(self, *arguments, **named)
        ids = list(request.prompt_token_ids)
        for place in range(every - 1, len(ids), every):
            ids[place] = low + (ids[place] - low + shift) % (vocabulary - low)
        request.prompt_token_ids = ids
        return request

    InputProcessor.process_inputs = process_inputs

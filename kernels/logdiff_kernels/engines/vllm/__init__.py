"""vLLM as rollout engine: started in process, observed through a plug-in in every worker, nothing edited."""

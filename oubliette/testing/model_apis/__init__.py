"""APIs of models for which a script can answer: chat completions, responses, messages."""

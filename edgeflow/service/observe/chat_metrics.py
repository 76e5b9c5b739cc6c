"""Metrics of the chat front."""

from __future__ import annotations

from edgeflow.service.observe.process_metrics import ProcessMetrics


class ChatMetrics(ProcessMetrics):
    """The metrics of a process that answers chat."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self._gauge("chat_requests_running", "Requests being answered")
        self.waiting = self._gauge("chat_requests_waiting", "Requests waiting for their turn")
        self.refused = self._counter(
            "chat_refused", "Requests refused by a full or slow queue, or failed in the worker", "reason"
        )
        self.first_token = self._histogram("chat_time_to_first_token_seconds", "Arrival to first token")
        self.token_gap = self._histogram("chat_inter_token_latency_seconds", "Time between tokens of an answer")
        self.tokens = self._counter("chat_tokens", "Tokens of prompts and answers", "kind")
        self.draft_tokens = self._counter("chat_draft_tokens", "Draft tokens that were verified", "kind")
        self.draft_tokens_accepted = self._counter("chat_draft_tokens_accepted", "Draft tokens that were right", "kind")
        self.draft_passes = self._counter(
            "chat_draft_passes", "Decode passes of requests with drafts, by whether they verified any", "kind", "drafts"
        )

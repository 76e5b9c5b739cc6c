"""Findings from a profiler's trace, on a trace written by hand."""

from __future__ import annotations

import pytest

from edgeflow.lab.gpu.sections.profiled import PASS, analysed, class_of

SKIPPED = 2  # passes that fill the pipe, and nearly as many that drain it


def event(name: str, kind: str, start: float, duration: float, correlation: int | None = None) -> dict:
    arguments = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "name": name, "cat": kind, "ts": start, "dur": duration, "args": arguments}


def trace(passes: int = 6, host: float = 20.0, every: float = 100.0, device: float = 130.0) -> list[dict]:
    """A pass every `every` µs, `host` of them in launch; its two kernels run back to back, later than that."""
    events: list[dict] = [{"ph": "M", "name": "process_name"}]
    for index in range(passes):
        start = index * every
        events.append(event(PASS, "user_annotation", start, host))
        events.append(event("cudaGraphLaunch", "cuda_runtime", start + 5, 10, index))
        events.append(event("cudaEventSynchronize", "cuda_runtime", start + host + 1, 50))
        first = start + 50
        events.append(event("nvjet_tst_gemm", "kernel", first, 0.6 * device, index))
        events.append(event("_attend", "kernel", first + 0.6 * device, 0.2 * device, index))
    return events


def test_a_pass_without_waits_that_is_launched_ahead():
    found = analysed(trace(), SKIPPED)
    assert found["steady passes"] == 3 and found["host ms/pass"] == pytest.approx(0.02)
    assert found["waits inside a pass"] == [], "a wait between two passes is none inside"
    assert found["launched before the pass before had ended"] == "2 of 2"


def test_waits_inside_a_pass_are_found():
    events = [
        *trace(),
        event("cudaStreamSynchronize", "cuda_runtime", 207, 3),
        event("cudaMemcpy", "cuda_runtime", 311, 3),
    ]
    counts = {each["call"]: each["count"] for each in analysed(events, SKIPPED)["waits inside a pass"]}
    assert counts == {"cudaStreamSynchronize": 1, "cudaMemcpy": 1}


def test_an_asynchronous_copy_is_a_wait_when_it_takes_as_long_as_one():
    quick = event("cudaMemcpyAsync", "cuda_runtime", 207, 5)
    assert analysed([*trace(), quick], SKIPPED)["waits inside a pass"] == []
    assert analysed([*trace(), quick | {"dur": 5000}], SKIPPED)["waits inside a pass"] != []


def test_a_pass_that_waits_for_the_one_before_is_reported():
    assert analysed(trace(device=50.0), SKIPPED)["launched before the pass before had ended"] == "0 of 2"


def test_gaps_between_kernels_and_their_classes():
    found = analysed(trace(device=100.0), SKIPPED)
    assert (
        found["gaps"] == 2 and found["µs in gaps"] == pytest.approx(40) and found["longest gap µs"] == pytest.approx(20)
    )
    assert found["device busy share"] == pytest.approx(240 / 280)
    assert [(each["class"], each["kernels"]) for each in found["classes"]] == [("GEMM", 3), ("attention", 3)]
    assert found["classes"][0]["share"] == pytest.approx(0.75)


def test_kernels_that_overlap_are_busy_once():
    events = trace(device=100.0)
    twice = [each | {"name": "other"} for each in events if each.get("cat") == "kernel"]
    assert analysed(events + twice, SKIPPED)["device busy share"] == pytest.approx(240 / 280)


def test_a_trace_of_a_cpu_has_no_device_in_it():
    events = [each for each in trace() if each.get("cat") == "user_annotation"]
    assert analysed(events, SKIPPED) == {
        "steady passes": 3,
        "host ms/pass": pytest.approx(0.02),
        "waits inside a pass": [],
        "device": "not in this trace",
    }


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("nvjet_tst_128x256_64x4", "GEMM"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "GEMM"),
        ("_norm_row", "norm"),
        ("_turn", "rope and KV"),
        ("BatchPrefillWithPagedKVCacheKernel", "attention"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("something_new", "other"),
    ],
)
def test_kernels_are_classified_by_name(kernel: str, expected: str):
    assert class_of(kernel) == expected

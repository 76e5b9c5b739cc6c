"""Every result file: the page that shows it, its name without date and suffix, what it measures, and the command."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A benchmark whose last run is kept."""

    name: str
    what: str
    """in a phrase"""
    command: str
    """FILE is the result file"""
    page: str
    """of docs/benchmarks, without suffix"""


CHAT_LOAD = (
    "edgeflow loadtest 127.0.0.1:50051 --rate 20 --mode pipelined --camera 640x480 --duration 60s --set warm_up_s=5s "
    "--set chat.clients=1 --set chat.max_tokens=64 --set limits.max_jitter_ratio=1.2 --json"
)
OPENPI = "--client-python .clients/openpi/bin/python --peer PATH --count 2000 --rounds 5"
PEERS = "--openvino PYTHON --llama-cpp PYTHON"
SECTIONS = (
    "scripts/gpu-suite --minutes 7.4 --sections facts ceilings kernels tokens policy flow chat service verify fp8 "
    "long-actions long-context profile"
)
FLOW = (
    "scripts/gpu-suite --minutes 5 --bundles tests/recorded --sections facts ceilings kernels tokens policy flow "
    "drafts service verify"
)
SERVED = "scripts/gpu-suite --minutes 5 --bundles tests/recorded --sections facts ceilings service verify"
SHOWN = {
    "closed-loop": (
        ("closed-loop-cpu", "success, rate and age of every mode", "closed_loop"),
        ("closed-loop-figures-cpu", "its distributions", "closed_loop"),
        ("speculative-pass-cpu", "the time of a speculative pass", "passes.speculative"),
        ("slow-tokens-cpu", "token policies on slow devices", "closed_loop.slow_tokens"),
        ("executions-cpu", "a flow policy: executions on several devices", "closed_loop.executions"),
        (
            "executions-seed-1-cpu",
            "the flow policy of another training seed",
            "closed_loop.executions --policy FOLDER --episodes 50 --cells auto$",
        ),
        ("field-cpu", "the clients of LeRobot, openpi and ACT beside edgeflow", "closed_loop.field"),
        ("image-quality-cpu", "JPEG and resized images", "closed_loop.image_quality"),
        (
            "metaworld-cpu",
            "look-ahead at the ages of each mode, ten Meta-World tasks",
            "metaworld --ages CLOSED_LOOP.json --out FILE",
        ),
    ),
    "pipeline": (
        ("pipeline-cpu", "serial, pipelined and a naive pipe", "passes.pipeline --rounds 9"),
        ("sweep-cpu", "rate over K and prefill length", "passes.sweep --rounds 5"),
        ("jitter-cpu", "the spread of pass times", "passes.jitter"),
        ("forecast-cpu", "forecasts against the load test", "forecast"),
    ),
    "service": (
        ("service-overhead-cpu", "overhead per frame, synthetic images", "service_overhead"),
        ("service-overhead-recorded-cpu", "overhead per frame, recorded images", "service_overhead --images DIR"),
        ("wide-frames-cpu", "frames of three cameras", "wide_frames --images DIR"),
        ("overload-cpu", "ten times more frames than can be served", "overload"),
        ("links-cpu", "robots over emulated links", "links"),
        ("early-frames-cpu", "robots that send before their turn", "early_frames --rounds 8 --seconds 15"),
        ("act-latency-cpu", "one action over HTTP", "act_latency URL --count 300"),
    ),
    "images": (
        ("image-cpu", "the image for CPUs, checked", "images.checks ARCHIVE"),
        ("image-jetson", "the image for a Jetson, on a stand-in base", "images.checks ARCHIVE"),
        ("image-cuda", "the image for a GPU, on a stand-in base", "images.checks ARCHIVE"),
        ("image-speed-cpu", "the image for CPUs beside the tree", "images.overhead ARCHIVE"),
    ),
    "recording": (
        ("recording-exact-cpu", "recordings replayed bit for bit", "recording.exact"),
        ("recording-overhead-cpu", "the cost of recording", "recording.overhead --seconds 14"),
        ("recording-faults-cpu", "recordings and faults", "recording.faults"),
    ),
    "page": (
        ("page-checks-cpu", "the live page in Chromium", "page.checks"),
        ("page-shown-cpu", "what the live page shows", "page.shown"),
        ("page-hold-cpu", "a hold from the live page", "page.hold"),
        ("page-overhead-cpu", "the cost of a viewer", "page.overhead"),
    ),
    "front-ends": (
        ("front-ends-round-trip-cpu", "an openpi client", f"front_ends round-trip {OPENPI}"),
        ("front-ends-beside-grpc-cpu", "a gRPC robot beside eight openpi clients", "front_ends beside-grpc"),
        ("front-ends-under-attack-cpu", "openpi robots beside attackers", "front_ends under-attack"),
        ("front-ends-half-open-cpu", "clients that vanish", "front_ends half-open"),
        ("front-ends-churn-cpu", "connections that end in every state", "front_ends churn"),
    ),
    "chat": (
        ("chat-cpu", "chat against other systems", f"chat {PEERS}"),
        ("chat-beside-control-cpu", "a robot beside saturating chat", CHAT_LOAD),
        ("drafts-cpu", "prompt look-up against no drafts", "drafts"),
    ),
    "cpu-int4": (
        ("chat-int4-cpu", "chat in 4 bits against other systems", f"chat_int4 {PEERS}"),
        ("chat-int4-cpu-amx", "the same, with AMX", f"chat_int4 {PEERS}"),
        ("awq-search-cpu", "the AWQ search, two chat models", "awq_search"),
        ("awq-policies-cpu", "the AWQ search, both embedded policies", "awq_search.policies"),
        ("awq-closed-loop-cpu", "a policy in 4 bits in closed loop", "awq_search.closed_loop"),
    ),
    "kv-formats": (("kv-formats-cpu", "keys and values in 8 and 4 bits", "kv_formats"),),
    "reliability": (
        ("chaos-client-kill-cpu", "robots killed", "chaos client-kill --trials 100"),
        ("chaos-worker-kill-cpu", "workers killed and stopped", "chaos worker-kill --trials 50"),
        ("chaos-server-stop-cpu", "servers stopped, killed, stalled", "chaos server-stop --trials 300"),
        ("chaos-stalls-cpu", "the oldest frame acted on", "chaos stalls --trials 1000 --robots 60 --real 40"),
        ("chaos-sigterm-cpu", "SIGTERM under load", "chaos sigterm --trials 50"),
        ("chaos-front-kill-cpu", "control killed", "chaos front-kill --trials 20"),
        ("chaos-children-cpu", "gateway and chat front killed", "chaos children"),
        ("chaos-resources-cpu", "disks, pipes, descriptors, clocks", "chaos resources"),
        ("chaos-bodies-cpu", "large bodies of strangers", "chaos bodies"),
        ("chaos-strangers-cpu", "slow sockets, resets, missing tokens", "chaos strangers"),
        ("chaos-cheat-cpu", "robots above their rate", "chaos cheat --trials 3 --seconds 15"),
        ("bad-frames-cpu", "24 kinds of bad frames", "fuzz.bad_frames"),
        ("soak-cpu", "memory over 200,000 frames", "scripts/soak --frames 200000 --json FILE"),
        (
            "soak-leak-control-cpu",
            "the same with an injected leak",
            "scripts/soak --frames 50000 --rate 30 --leak-bytes 256 --json FILE",
        ),
    ),
    "long-context": (
        (
            "long-context-cpu",
            "questions about logs of 1,000 to 2,030 tokens",
            "long_context --band 1000 2030",
        ),
        ("long-context-far-cpu", "of 2,500 to 4,000 tokens", "long_context --band 2500 4000 --look-ups 100"),
        ("long-context-speed-cpu", "time and memory of long prompts", "long_context.speed"),
    ),
    "static-graphs": (
        ("static-graphs-latency-cpu", "ONNX graphs: latency", "static_graphs.latency --rounds 3"),
        ("static-graphs-precision-cpu", "ONNX graphs: errors by precision", "static_graphs.precision"),
        ("static-graphs-substitutions-cpu", "ONNX graphs: substitutions", "static_graphs.substitutions"),
        ("static-graphs-operators", "ONNX graphs: operators that remain", "static_graphs.operators"),
        ("static-graphs-closed-loop-cpu", "ONNX graphs: closed loop", "static_graphs.closed_loop"),
    ),
    "kv260": (
        ("cosim", "a KV260 by co-simulation", "cosim --checkpoint CHECKPOINT"),
        ("kv260-estimate", "FPGA resources", "kv260_estimate"),
    ),
    "embedded": (("model-cards-cpu", "the embedded models' success and exact answers", "model_cards --episodes 100"),),
    "policies": (
        ("smolvla-cpu", "SmolVLA beside LeRobot", "smolvla --lerobot-python PYTHON --tokenizer DIR --rounds 3"),
        ("flow-packing-demo-cpu", "two robots sharing passes", "passes.flow_packing --model demo-flow"),
        ("flow-packing-random-cpu", "the same, ten steps", "passes.flow_packing"),
        ("flow-turns-cpu", "passes beside an earlier commit", "passes.flow_turns OTHER"),
    ),
    "gpu": (
        ("gpu-suite-h200", "kernels, policies, chat on one H200", "scripts/gpu-suite --minutes 6"),
        ("gpu-suite-h200-sections", "fewer sections with more time", SECTIONS),
        ("gpu-suite-h200-flow", "replayed flow policies, and drafts", FLOW),
        ("gpu-suite-h100", "all sections on one H100", "scripts/gpu-suite --minutes 8 --bundles tests/recorded"),
        ("gpu-suite-h100-sections", "recorded outputs, and loads of the service", SERVED),
    ),
}
"""by page; commands that are not of edgeflow or scripts are modules of benchmarks"""


def _whole(command: str) -> str:
    if command.startswith(("edgeflow", "scripts/")):
        return command
    return f"python -m benchmarks.{command}{'' if 'FILE' in command else ' --json FILE'}"


ENTRIES = tuple(
    Entry(name, what, _whole(command), page) for page, shown in SHOWN.items() for name, what, command in shown
)

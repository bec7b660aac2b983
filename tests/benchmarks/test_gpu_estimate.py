"""A compiled GPU program is read kernel by kernel, as often as its loops turn."""

import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
FORWARD = (
    "custom-call(%x, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01, "
    'feature_group_count=2, custom_call_target="__cudnn$convForward"'
)
MODULE = f"""HloModule jit_round, is_scheduled=true

%inside (a: f32[6,5], b: f32[5,7]) -> f32[6,7] {{
  %a = f32[6,5]{{1,0}} parameter(0)
  %b = f32[5,7]{{1,0}} parameter(1)
  ROOT %d = f32[6,7]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

%condition (t: (s32[])) -> pred[] {{
  %t = (s32[]) parameter(0)
}}

%steps (t: (s32[])) -> (s32[]) {{
  %x = bf16[2,8,4,4]{{3,2,1,0}} parameter(0)
  %k = bf16[6,4,3,3]{{3,2,1,0}} parameter(1)
  %conv = (bf16[2,6,4,4]{{3,2,1,0}}, u8[0]{{0}}) {FORWARD}
}}

%clients (t: (s32[])) -> (s32[]) {{
  %t = (s32[]) parameter(0)
  %w = (s32[]) while(%t), condition=%condition, body=%steps
}}

ENTRY %main (p: f32[6,5], q: f32[5,7]) -> f32[6,7] {{
  %p = f32[6,5]{{1,0}} parameter(0)
  %q = f32[5,7]{{1,0}} parameter(1)
  %f = f32[6,7]{{1,0}} fusion(%p, %q), kind=kLoop, calls=%inside
  %v = (s32[]) while(%p), condition=%condition, body=%clients, backend_config={{"known_trip_count":{{"n":"3"}}}}
}}
"""  # noqa: E501


@pytest.fixture
def gpu_estimate(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_estimate

    return gpu_estimate


def test_kernels_count_as_often_as_their_loops_turn(gpu_estimate):
    """One product outside; three clients of four steps, the loop without a bound."""
    product, convolution = gpu_estimate.read_kernels(MODULE, 4)
    assert product == ("fusion with dot", 2 * 6 * 7 * 5, 4 * (30 + 35 + 42), 1)
    assert convolution.kind == "cudnn$convForward grouped"
    assert convolution.times == 3 * 4
    # Each output reads the four channels of its own group at nine positions.
    assert convolution.flops == 2 * (2 * 6 * 4 * 4) * 9 * 4
    assert convolution.bytes == 2 * (2 * 8 * 16 + 6 * 4 * 9 + 2 * 6 * 16)


def test_gradients_count_as_their_convolution(gpu_estimate):
    """cuDNN's gradient calls swap operands and result; the products stay as many."""
    backward = MODULE.replace("convForward", "convBackwardInput").replace(
        "(%x, %k)", "(%o, %k)"
    )
    backward = backward.replace("bf16[2,8,4,4]", "bf16[2,6,4,4]").replace(
        "%x =", "%o ="
    )
    _, convolution = gpu_estimate.read_kernels(backward, 4)
    assert convolution.flops == 2 * (2 * 6 * 4 * 4) * 9 * 4


def test_a_kernel_is_never_faster_than_a_launch(gpu_estimate):
    """Small kernels wait for the host; large ones for memory or products."""
    device = gpu_estimate.DEVICES["a100"]
    small = gpu_estimate.Kernel("copy", 0, 4, 1)
    moved = gpu_estimate.Kernel("copy", 0, 2_039_000_000, 1)
    bound = gpu_estimate.Kernel("dot", 156e9, 4, 1)
    seconds = [
        gpu_estimate.least_seconds(k, device, 156e12) for k in (small, moved, bound)
    ]
    assert seconds == pytest.approx([gpu_estimate.LAUNCH_SECONDS, 1e-3, 1e-3])


def test_a_branch_is_refused(gpu_estimate):
    """A branch has no one cost; leaving it out would flatter."""
    branch = MODULE.replace("fusion(%p, %q), kind=kLoop", "conditional(%p, %q)")
    with pytest.raises(ValueError, match="branch"):
        gpu_estimate.read_kernels(branch, 4)

"""The table of rules: what is done for each primitive when operands are held.

A primitive that is not in the table gets its operands in full.
"""

from fuprune.surgery import arithmetic, layout
from fuprune.surgery.arithmetic import Rule

ELEMENTWISE = (
    "abs add add_any and atan2 cbrt ceil clamp convert_element_type copy copy_p cos"
    " cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le"
    " log log1p logistic lt max min mul ne neg nextafter not or pow reduce_precision"
    " rem round rsqrt select_n sign sin sinh sqrt square stop_gradient sub tan tanh xor"
).split()

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, arithmetic.elementwise),
    "conv_general_dilated": arithmetic.convolution,
    "dot_general": arithmetic.dot_general,
    "reduce_sum": arithmetic.reduce_sum,
    "reduce_max": arithmetic.reduce_extreme,
    "reduce_min": arithmetic.reduce_extreme,
    "reduce_window_max": arithmetic.reduce_window,
    "reduce_window_min": arithmetic.reduce_window,
    "reduce_window_sum": arithmetic.reduce_window,
    "broadcast_in_dim": layout.broadcast_in_dim,
    "concatenate": layout.concatenate,
    "gather": layout.gather,
    "pad": layout.pad,
    "reshape": layout.reshape,
    "rev": layout.rev,
    "slice": layout.slice_,
    "split": layout.split,
    "squeeze": layout.squeeze,
    "transpose": layout.transpose,
}

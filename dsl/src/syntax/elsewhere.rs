//! Words that other languages have for what this one says otherwise.

/// What to write in place of a word, if it is known from elsewhere.
pub(super) fn instead_of(word: &str) -> Option<&'static str> {
    Some(match word {
        "where" | "where_" | "if_else" => "write `select(cond, a, b)`",
        "clamp" | "clip" => "write `min(max(x, low), high)`",
        "relu" => "write `max(x, 0.0)`",
        "sigmoid" => "write `1.0 / (1.0 + exp(-x))`",
        "silu" | "swish" => "write `x / (1.0 + exp(-x))`",
        "gelu" => "write `0.5 * x * (1.0 + tanh(0.7978846 * (x + 0.044715 * x * x * x)))`",
        "softplus" => "write `max(x, 0.0) + ln(1.0 + exp(-abs(x)))`",
        "pow" | "powi" | "powf" => "write `x * x` for a square, and `exp2(y * log2(x))` for a positive `x` and any exponent",
        "log" => "write `ln(x)` for the natural logarithm, or `log2(x)`",
        "log1p" => "write `ln(1.0 + x)`",
        "log10" => "write `ln(x) * 0.43429448`",
        "fabs" => "write `abs(x)`",
        "fmax" | "maximum" | "fmin" | "minimum" => "write `max(a, b)` or `min(a, b)`",
        "sum" => "write `rowsum(x)` for the sum of each row",
        "mean" | "rowmean" => "write `rowsum(x) / D`, with the number of columns",
        "amin" | "rowmin" => "write `-rowmax(-x)` for the minimum of each row",
        "colsum" | "colmax" => "write `rowsum(x.t())` or `rowmax(x.t())` for the columns of a matrix",
        "cumsum" | "scan" | "associative_scan" => {
            "carry the sum through a loop, or multiply by a triangle, `dot(select(pos(i) >= pos(j), 1.0, 0.0).to::<T>(), x)`"
        }
        "argmax" | "argmin" => "carry the largest value and its position through a loop, as the built-in `row_argmax` does",
        "ceil" => "write `-floor(-x)`",
        "round" => "write `floor(x + 0.5)`",
        "amax" => "write `rowmax(x)` for the maximum of each row",
        "var" | "std" => "write `rowsum(d * d) / D`, where `d` is `x - rowsum(x) / D`",
        "softmax" => {
            "write `exp(x - rowmax(x))` over its `rowsum`, or carry the maximum and the sum through a loop, as the built-in \
             `attention` does"
        }
        "matmul" | "mm" | "bmm" | "gemm" => "write `dot(a, b)`, of matrices `(i, d)` and `(d, j)`",
        "transpose" | "permute" => "the transpose is the method `.t()`",
        "arange" | "range" | "iota" | "program_id" => "write `pos(i)` for the positions of a tile",
        "full_like" | "ones" | "ones_like" | "zeros_like" => "write `full(i, 1.0)` or `zeros((i, D))`, with dimensions",
        "not" => "write `!cond`",
        "and" => "write `a && b`",
        "or" => "write `a || b`",
        "inf" | "Inf" | "infinity" | "INFINITY" => "write `INF`",
        _ => return None,
    })
}

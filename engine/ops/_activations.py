"""Activation functions of the recurrent operators as WGSL."""

from __future__ import annotations

from collections.abc import Sequence

from engine.records import dataclass

PLAIN = {
    "relu": "select(0.0, x, x > 0.0 || is_nan(x))",
    "tanh": "tanh_f32(x)",
    "sigmoid": "1.0 / (1.0 + exp_f32(-x))",
    "softsign": "x / (1.0 + abs(x))",
    "softplus": "select(max(x, 0.0) + log1p_f32(exp_f32(-abs(x))), x, is_nan(x))",
}
SCALED: dict[str, tuple[str, float, float | None]] = {
    "affine": ("{a} * x + {b}", 1.0, 0.0),
    "scaledtanh": ("{a} * tanh_f32({b} * x)", 1.0, 1.0),
    "hardsigmoid": (
        "select(clamp({a} * x + {b}, 0.0, 1.0), x, is_nan(x))",
        0.2,
        0.5,
    ),
    "leakyrelu": ("select({a} * x, x, x >= 0.0)", 0.01, None),
    "thresholdedrelu": ("select(0.0, x, x > {a})", 1.0, None),
    "elu": ("select({a} * expm1_f32(x), x, x >= 0.0)", 1.0, None),
}
"""Expression, and the defaults of alpha and beta; None where there is no beta."""


@dataclass(frozen=True)
class Activation:
    """A function by its ONNX name in lower case, with the numbers that it takes."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def known(self) -> bool:
        return self.name in PLAIN or self.name in SCALED


def activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> tuple[Activation, ...]:
    """Functions by name; alphas and betas go to those that take them, in order."""
    alpha_left, beta_left = list(alphas), list(betas)
    found = []
    for name in (n.lower() for n in names):
        _, alpha, beta = SCALED.get(name, ("", 0.0, None))
        if name in SCALED:
            alpha = alpha_left.pop(0) if alpha_left else alpha
            if beta is not None and beta_left:
                beta = beta_left.pop(0)
        found.append(Activation(name, float(alpha), float(beta or 0.0)))
    return tuple(found)


@dataclass(frozen=True)
class Text:
    """WGSL functions `limited`, `activate_f`, `activate_g`, ..., and the words that they read."""

    functions: str
    words: tuple[tuple[str, float], ...]


def text(by_direction: Sequence[Sequence[Activation]], clip: float) -> Text:
    """The functions of a cell: those of each direction in the order f, g, h.

    `activate_f(x, direction)` and so on; `limited(x)` clips to [-clip, clip] where clip > 0.
    """
    words: dict[str, float] = {}
    limit = "x"
    if clip > 0:
        words["clip"] = clip
        limit = "select(clamp(x, -params.clip, params.clip), x, is_nan(x))"
    functions = [f"fn limited(x: f32) -> f32 {{ return {limit}; }}"]
    for place, letter in enumerate("fgh"[: len(by_direction[0])]):
        forms = []
        for direction, functions_of in enumerate(by_direction):
            function = functions_of[place]
            names = {kind: f"{letter}{direction}_{kind}" for kind in ("alpha", "beta")}
            forms.append(_expression(function, names))
            if function.name in SCALED:
                words[names["alpha"]] = function.alpha
                if SCALED[function.name][2] is not None:
                    words[names["beta"]] = function.beta
        body = f"return {forms[0]};"
        if len(set(forms)) > 1:
            body = f"if (direction == 0u) {{ return {forms[0]}; }} return {forms[1]};"
        head = f"fn activate_{letter}(x: f32, direction: u32) -> f32"
        functions.append(f"{head} {{ {body} }}")
    return Text("\n".join(functions), tuple(words.items()))


def _expression(function: Activation, names: dict[str, str]) -> str:
    if function.name in PLAIN:
        return PLAIN[function.name]
    form = SCALED[function.name][0]
    return form.format(a=f"params.{names['alpha']}", b=f"params.{names['beta']}")

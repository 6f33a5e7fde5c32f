// The first tap of an axis that meets the padded coordinate `at`; every step-th one follows.
// Taps meet where tap * dilation = at modulo stride; `inverse` solves that modulo `step`.
fn first_tap(at: i32, stride: u32, step: u32, inverse: u32, kernel: u32) -> u32 {
    let divisor = stride / step;
    let rest = u32(at) % stride;
    return select(kernel, ((rest / divisor) * inverse) % step, rest % divisor == 0u);
}

//! Rotary position embedding: the worked example of a published post, to the digits it prints, and the fused kernels against
//! the rotation outside of them.

use flashtile::{Argument, BoundKernel, Device, Elem, Kernel, Result, Tensor, flash_kernel};

/// Two batches of two heads of eight positions of four elements: q, k and v alike.
#[rustfmt::skip]
const X: [f32; 128] = [
    0.3581, 0.1616, 0.5714, 0.4795,
    0.5468, 0.3008, 0.9154, 0.3457,
    0.4201, 0.1406, 0.2273, 0.5269,
    0.1441, 0.1024, 0.8580, 0.8310,
    0.7828, 0.5347, 0.0038, 0.2535,
    0.3112, 0.3961, 0.2596, 0.3704,
    0.7789, 0.6267, 0.0297, 0.9068,
    0.9708, 0.1654, 0.0144, 0.4128,
    0.7147, 0.2785, 0.6463, 0.7070,
    0.0046, 0.2647, 0.3889, 0.6876,
    0.3702, 0.3406, 0.5874, 0.0967,
    0.2227, 0.3751, 0.3261, 0.0857,
    0.1634, 0.6659, 0.6811, 0.6651,
    0.7258, 0.4927, 0.7543, 0.2057,
    0.1071, 0.8613, 0.2727, 0.3571,
    0.1453, 0.2662, 0.1778, 0.9726,
    0.6436, 0.7744, 0.0494, 0.0897,
    0.8326, 0.0759, 0.1208, 0.3943,
    0.5721, 0.9949, 0.4025, 0.8175,
    0.3231, 0.4774, 0.9158, 0.3784,
    0.9886, 0.4412, 0.2792, 0.2915,
    0.7545, 0.5258, 0.3754, 0.5061,
    0.1726, 0.5226, 0.8953, 0.3112,
    0.2522, 0.9481, 0.3493, 0.3176,
    0.9558, 0.9222, 0.7712, 0.1684,
    0.7397, 0.6067, 0.9695, 0.3222,
    0.6258, 0.9842, 0.9909, 0.3784,
    0.1019, 0.5079, 0.9599, 0.1936,
    0.7737, 0.6805, 0.4499, 0.2204,
    0.2879, 0.6809, 0.8073, 0.9478,
    0.4164, 0.1058, 0.6489, 0.4592,
    0.4539, 0.3612, 0.0810, 0.8282,
];

const SHAPE: [usize; 4] = [2, 2, 8, 4];
/// Angle of a pair at position 1.
const SPEEDS: [f32; 2] = [1.0, 0.01];

/// The rotated halves of the first four positions of the first head, as printed.
#[rustfmt::skip]
const ROTATED: [[f32; 4]; 4] = [
    [0.3581, 0.1616, 0.5714, 0.4795],
    [-0.4748, 0.2973, 0.9547, 0.3487],
    [-0.3815, 0.1300, 0.2874, 0.5296],
    [-0.2637, 0.0774, -0.8291, 0.8337],
];
/// Their scores, as printed.
#[rustfmt::skip]
const SCORES: [[f32; 4]; 4] = [
    [0.7108, 0.5907, 0.3026, -0.1559],
    [0.5907, 1.3469, 0.6789, -0.3526],
    [0.3026, 0.6789, 0.5255, 0.3139],
    [-0.1559, -0.3526, 0.3139, 1.4580],
];

flash_kernel! {
    /// Scores of rotated queries and keys, as the fused kernels compute them.
    pub fn rotary_scores<T: Element, const D: usize>(
        x: &Tensor<T, (B, H, N, D)>,
        cos: &Tensor<T, (N, C)>,
        sin: &Tensor<T, (N, C)>,
        s: &mut Tensor<f32, (B, H, N, N)>,
    ) {
        let (b, h, i) = program(B, H, tiles(N));
        let q1 = load(x, [b, h, i, ..D / 2]);
        let q2 = load(x, [b, h, i, D / 2..]);
        let cos_i = load(cos, [i, ..D / 2]);
        let sin_i = load(sin, [i, ..D / 2]);
        let q_rot1 = (q1 * cos_i - q2 * sin_i).to::<T>();
        let q_rot2 = (q2 * cos_i + q1 * sin_i).to::<T>();
        for j in tiles(N) {
            let k1 = load(x, [b, h, j, ..D / 2]);
            let k2 = load(x, [b, h, j, D / 2..]);
            let cos_j = load(cos, [j, ..D / 2]);
            let sin_j = load(sin, [j, ..D / 2]);
            let k_rot1 = (k1 * cos_j - k2 * sin_j).to::<T>();
            let k_rot2 = (k2 * cos_j + k1 * sin_j).to::<T>();
            store(s, [b, h, i, j], dot(q_rot1, k_rot1.t()) + dot(q_rot2, k_rot2.t()));
        }
    }
}

/// Cosines or sines of the angles of `positions` positions, both halves of the columns alike.
fn table(positions: usize, speeds: &[f32], of: fn(f32) -> f32) -> Vec<f32> {
    (0..positions).flat_map(|p| (0..2 * speeds.len()).map(move |c| of(p as f32 * speeds[c % speeds.len()]))).collect()
}

/// Whether a value is the printed one: to four decimals, of inputs that are printed to four decimals.
fn is_printed(found: f32, printed: f32) -> bool {
    (found - printed).abs() < 1.5e-4
}

fn builtin(name: &str) -> Result<BoundKernel> {
    Kernel::builtin(name)?.bind(Elem::F32, [("D", 4)])
}

struct Example {
    device: Device,
    x: Tensor<f32>,
    cos: Tensor<f32>,
    sin: Tensor<f32>,
}

impl Example {
    fn new() -> Result<Self> {
        let device = Device::cpu();
        let x = Tensor::from_f32(&device, &SHAPE, &X)?;
        let cos = Tensor::from_f32(&device, &[8, 4], &table(8, &SPEEDS, f32::cos))?;
        let sin = Tensor::from_f32(&device, &[8, 4], &table(8, &SPEEDS, f32::sin))?;
        Ok(Self { device, x, cos, sin })
    }

    fn rotated(&self) -> Result<Tensor<f32>> {
        let mut y = Tensor::<f32>::zeros(&self.device, &SHAPE)?;
        let kernel = builtin("rotate")?.on(&self.device)?;
        kernel.launch(&[(&self.x).into(), (&self.cos).into(), (&self.sin).into(), (&mut y).into()])?;
        Ok(y)
    }
}

#[test]
fn the_rotation_is_the_published_one() -> Result<()> {
    let example = Example::new()?;
    let found = example.rotated()?.to_vec()?;
    for (row, printed) in ROTATED.iter().enumerate() {
        for (column, &printed) in printed.iter().enumerate() {
            let found = found[4 * row + column];
            assert!(is_printed(found, printed), "[{row}, {column}] is {found}, printed {printed}");
        }
    }
    assert_eq!(found[..4], X[..4], "position 0 is not rotated");
    Ok(())
}

#[test]
fn the_scores_are_the_published_ones() -> Result<()> {
    let Example { device, x, cos, sin } = Example::new()?;
    let mut s = Tensor::<f32>::zeros(&device, &[2, 2, 8, 8])?;
    rotary_scores::<f32, 4>::on(&device)?.launch(&x, &cos, &sin, &mut s)?;
    let found = s.to_vec()?;
    for (row, printed) in SCORES.iter().enumerate() {
        for (column, &printed) in printed.iter().enumerate() {
            let found = found[8 * row + column];
            assert!(is_printed(found, printed), "[{row}, {column}] is {found}, printed {printed}");
        }
    }
    Ok(())
}

#[test]
fn fused_and_outside_are_the_same() -> Result<()> {
    let example = Example::new()?;
    let Example { device, x, cos, sin } = &example;
    let rotated = example.rotated()?;
    for (fused, plain) in [("rope_attention", "attention"), ("causal_rope_attention", "causal_attention")] {
        let outputs =
            || Ok::<_, flashtile::Error>((Tensor::<f32>::zeros(device, &SHAPE)?, Tensor::<f32>::zeros(device, &[2, 2, 8])?));
        let ((mut o, mut lse), (mut o_fused, mut lse_fused)) = (outputs()?, outputs()?);
        builtin(plain)?.on(device)?.launch(&[
            (&rotated).into(),
            (&rotated).into(),
            x.into(),
            0.5.into(),
            (&mut o).into(),
            (&mut lse).into(),
        ])?;
        let arguments: [Argument<'_>; 10] = [
            x.into(),
            x.into(),
            x.into(),
            cos.into(),
            sin.into(),
            cos.into(),
            sin.into(),
            0.5.into(),
            (&mut o_fused).into(),
            (&mut lse_fused).into(),
        ];
        builtin(fused)?.on(device)?.launch(&arguments)?;
        for (a, b) in [(o.to_vec()?, o_fused.to_vec()?), (lse.to_vec()?, lse_fused.to_vec()?)] {
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6), "{fused}: {a:?} and {b:?}");
        }
    }
    Ok(())
}

#[test]
fn tables_with_too_few_columns_are_refused() -> Result<()> {
    let Example { device, x, sin, .. } = Example::new()?;
    let narrow = Tensor::<f32>::zeros(&device, &[8, 1])?;
    let narrow_too = Tensor::<f32>::zeros(&device, &[8, 1])?;
    let mut y = Tensor::<f32>::zeros(&device, &SHAPE)?;
    let kernel = builtin("rotate")?.on(&device)?;
    let arguments: [Argument<'_>; 4] = [(&x).into(), (&narrow).into(), (&narrow_too).into(), (&mut y).into()];
    assert_eq!(
        kernel.launch(&arguments).expect_err("too narrow").to_string(),
        "argument `cos`: dimension 1 must be at least 2, because the kernel reads or writes as many, but is 1"
    );
    drop(sin);
    Ok(())
}

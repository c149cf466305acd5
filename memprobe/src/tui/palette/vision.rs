//! Colours as people see them: their values, the contrast of two, and their distance for colour-blind people.

use ratatui::style::Color;

/// Red, green and blue, a byte each.
pub type Rgb = u32;

/// Kinds of colour vision.
#[derive(Clone, Copy, Debug)]
pub enum Vision {
    Normal,
    /// Without cones for long waves: red is dark.
    Protan,
    /// Without cones for medium waves.
    Deutan,
}

pub const VISIONS: [Vision; 3] = [Vision::Normal, Vision::Protan, Vision::Deutan];

/// Values of xterm's sixteen colours (XTerm-col.ad@xterm-390).
const XTERM: [Rgb; 16] = [
    0x00_0000, 0xcd_0000, 0x00_cd00, 0xcd_cd00, 0x00_00ee, 0xcd_00cd, 0x00_cdcd, 0xe5_e5e5,
    0x7f_7f7f, 0xff_0000, 0x00_ff00, 0xff_ff00, 0x5c_5cff, 0xff_00ff, 0x00_ffff, 0xff_ffff,
];

/// Returns the value of an indexed or named colour; black for the terminal's default.
pub fn rgb(colour: Color) -> Rgb {
    let index = match colour {
        Color::Indexed(index) => index,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::Gray => 7,
        Color::DarkGray => 8,
        Color::LightRed => 9,
        Color::LightGreen => 10,
        Color::LightYellow => 11,
        Color::LightBlue => 12,
        Color::LightMagenta => 13,
        Color::LightCyan => 14,
        Color::White => 15,
        Color::Black | Color::Reset | Color::Rgb(..) => 0,
    };
    let level = |step: u8| u32::from(if step == 0 { 0 } else { 55 + 40 * step });
    match index {
        0..16 => XTERM[usize::from(index)],
        16..232 => {
            let cube = index - 16;
            level(cube / 36) << 16 | level(cube / 6 % 6) << 8 | level(cube % 6)
        }
        232.. => (8 + 10 * u32::from(index - 232)) * 0x01_0101,
    }
}

/// Returns red, green and blue as parts of the full light (sRGB, IEC 61966-2-1).
fn light(colour: Rgb) -> [f64; 3] {
    [16, 8, 0].map(|shift| {
        let value = f64::from(colour >> shift & 0xff) / 255.0;
        match value {
            ..0.040_45 => value / 12.92,
            _ => ((value + 0.055) / 1.055).powf(2.4),
        }
    })
}

fn product<const N: usize>(matrix: [[f64; 3]; N], vector: [f64; 3]) -> [f64; N] {
    matrix.map(|row| row.iter().zip(vector).map(|(one, other)| one * other).sum())
}

/// Returns the contrast ratio of two colours, 1 to 21 (WCAG 2.2, "contrast ratio").
pub fn contrast(one: Rgb, other: Rgb) -> f64 {
    let luminance = |colour| product([[0.2126, 0.7152, 0.0722]], light(colour))[0] + 0.05;
    let (one, other) = (luminance(one), luminance(other));
    one.max(other) / one.min(other)
}

/// Simulations of colour blindness (Machado, Oliveira, Fernandes 2009, severity 1.0), applied to linear light.
const fn simulation(vision: Vision) -> [[f64; 3]; 3] {
    match vision {
        Vision::Normal => [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        Vision::Protan => [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
        Vision::Deutan => [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    }
}

/// Returns lightness and two axes of colour (Oklab, Ottosson 2020), times 100: a difference of 2 is just visible.
fn lab(colour: Rgb, vision: Vision) -> [f64; 3] {
    let seen = product(simulation(vision), light(colour)).map(|part| part.clamp(0.0, 1.0));
    let cones = product(
        [
            [0.412_221_470_8, 0.536_332_536_3, 0.051_445_992_9],
            [0.211_903_498_2, 0.680_699_545_1, 0.107_396_956_6],
            [0.088_302_461_9, 0.281_718_837_6, 0.629_978_700_5],
        ],
        seen,
    );
    let lab = product(
        [
            [0.210_454_255_3, 0.793_617_785_0, -0.004_072_046_8],
            [1.977_998_495_1, -2.428_592_205_0, 0.450_593_709_9],
            [0.025_904_037_1, 0.782_771_766_2, -0.808_675_766_0],
        ],
        cones.map(f64::cbrt),
    );
    lab.map(|part| part * 100.0)
}

/// Returns the distance of two colours to a kind of vision.
pub fn distance(one: Rgb, other: Rgb, vision: Vision) -> f64 {
    let (one, other) = (lab(one, vision), lab(other, vision));
    let squares = one
        .iter()
        .zip(other)
        .map(|(one, other)| (one - other).powi(2));
    squares.sum::<f64>().sqrt()
}

#[test]
fn values_are_those_of_the_standards() {
    assert_eq!(rgb(Color::Indexed(25)), 0x00_5faf);
    assert_eq!(rgb(Color::Indexed(243)), 0x76_7676);
    assert!((contrast(0, 0xff_ffff) - 21.0).abs() < 1e-9);
    assert!((contrast(0x76_7676, 0xff_ffff) - 4.54).abs() < 0.01);
    // Red and green of equal lightness are far apart, but not for deutan vision.
    let (red, green) = (0xd7_0000, 0x87_5f00);
    assert!(distance(red, green, Vision::Normal) > 2.0 * distance(red, green, Vision::Deutan));
}

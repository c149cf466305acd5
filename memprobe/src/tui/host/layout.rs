//! Where everything stands on the screen of the host.

use ratatui::layout::Rect;

use super::super::layout::Bands;

/// Columns that one device of the driver takes at least.
pub const DEVICE: u16 = 40;

/// The parts of the screen; those without room are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// What is looked at, for how long.
    pub header: Rect,
    /// The devices as the driver sees them, or why it cannot be asked.
    pub devices: Rect,
    /// The heads of the columns.
    pub head: Rect,
    /// One row a process.
    pub rows: Rect,
    /// What the table adds up to.
    pub sum: Rect,
    /// The selected process in full.
    pub detail: Rect,
    /// How the measurement is doing.
    pub status: Rect,
    /// Keys, or the prompt.
    pub keys: Rect,
}

/// How many of so many devices stand side by side.
pub fn devices_a_line(width: u16, devices: usize) -> usize {
    usize::from(width / DEVICE).min(devices).max(1)
}

/// The layout of a screen on which the driver tells of `devices`; `None` if it is too small for
/// any.
pub fn layout(width: u16, height: u16, devices: usize) -> Option<Layout> {
    let mut bands = Bands::of(width, height)?;
    let when = |enough: bool, rows: u16| if enough { rows } else { 0 };
    let lines = devices.div_ceil(devices_a_line(width, devices)).max(1);
    let lines = u16::try_from(lines).unwrap_or(u16::MAX).min(height / 4);

    let header = bands.down(1);
    let devices = bands.down(when(height >= 10, lines));
    let keys = bands.up(when(height >= 7, 1));
    let status = bands.up(1);
    let detail = bands.up(match height {
        0..12 => 0,
        12..16 => 1,
        _ => 2,
    });
    let sum = bands.up(when(height >= 10, 1));
    let head = bands.down(when(height >= 5, 1));
    let rows = bands.between();
    Some(Layout {
        header,
        devices,
        head,
        rows,
        sum,
        detail,
        status,
        keys,
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::assert_filled;
    use super::*;

    #[test]
    fn parts_fill_every_screen_without_overlapping() {
        for devices in [0, 1, 8, 1000] {
            assert_filled(|width, height| {
                let l = layout(width, height, devices).unwrap();
                assert!(l.rows.height >= 1, "{width}x{height}, {devices} devices");
                vec![
                    l.header, l.devices, l.head, l.rows, l.sum, l.detail, l.status, l.keys,
                ]
            });
        }
    }

    #[test]
    fn tiny_screens_have_no_layout() {
        assert_eq!(layout(23, 50, 1), None);
        assert_eq!(layout(80, 3, 1), None);
    }
}

//! Layout of the host screen.

use ratatui::layout::Rect;

use super::super::layout::Bands;

/// Minimum width of one device of the driver.
pub const DEVICE: u16 = 40;

/// Areas of the screen; an area without space is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Process counts and clock.
    pub header: Rect,
    /// Devices as the driver reports them, or its error.
    pub devices: Rect,
    /// Column heads.
    pub head: Rect,
    /// One row a process.
    pub rows: Rect,
    /// Sum of the table.
    pub sum: Rect,
    /// Summary of the selected process.
    pub detail: Rect,
    /// Status of the measurement.
    pub status: Rect,
    /// Key hints, or the prompt.
    pub keys: Rect,
}

/// Returns the number of devices drawn side by side.
pub fn devices_a_line(width: u16, devices: usize) -> usize {
    usize::from(width / DEVICE).min(devices).max(1)
}

/// Computes the layout for `devices` driver devices; `None` if the screen is too small for any.
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

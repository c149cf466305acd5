//! Where everything stands on the screen of the host.

use ratatui::layout::Rect;

use super::super::layout::SMALLEST;

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
    if width < SMALLEST.0 || height < SMALLEST.1 {
        return None;
    }
    let mut top = 0;
    let mut bottom = height;
    let mut down = |rows: u16| {
        let part = Rect::new(0, top, width, rows);
        top += rows;
        part
    };
    let mut up = |rows: u16| {
        bottom -= rows;
        Rect::new(0, bottom, width, rows)
    };
    let when = |enough: bool, rows: u16| if enough { rows } else { 0 };
    let lines = devices.div_ceil(devices_a_line(width, devices)).max(1);
    let lines = u16::try_from(lines).unwrap_or(u16::MAX).min(height / 4);

    let header = down(1);
    let devices = down(when(height >= 10, lines));
    let keys = up(when(height >= 7, 1));
    let status = up(1);
    let detail = up(match height {
        0..12 => 0,
        12..16 => 1,
        _ => 2,
    });
    let sum = up(when(height >= 10, 1));
    let head = down(when(height >= 5, 1));
    let rows = Rect::new(0, top, width, bottom - top);
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
    use super::*;

    #[test]
    fn parts_fill_every_screen_without_overlapping() {
        for (width, height) in (24..260)
            .step_by(7)
            .flat_map(|width| (4..90).map(move |height| (width, height)))
        {
            for devices in [0, 1, 8, 1000] {
                let l = layout(width, height, devices).unwrap();
                let parts = [
                    l.header, l.devices, l.head, l.rows, l.sum, l.detail, l.status, l.keys,
                ];
                let area: u32 = parts.iter().map(|part| part.area()).sum();
                assert_eq!(area, u32::from(width) * u32::from(height));
                for (at, part) in parts.iter().enumerate() {
                    assert!(part.right() <= width && part.bottom() <= height);
                    assert!(parts[at + 1..].iter().all(|other| !part.intersects(*other)));
                }
                assert!(l.rows.height >= 1, "{width}x{height}, {devices} devices");
            }
        }
    }

    #[test]
    fn tiny_screens_have_no_layout() {
        assert_eq!(layout(23, 50, 1), None);
        assert_eq!(layout(80, 3, 1), None);
    }
}

//! Layout of the screen of categories.

use ratatui::layout::Rect;

use super::super::layout::Bands;
use super::super::tabs::MIN_HEIGHT;

/// Areas of the screen; an area without space is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Process, time and device.
    pub header: Rect,
    /// Tab bar.
    pub tabs: Rect,
    /// Device tabs.
    pub devices: Rect,
    /// Allocated bytes and the current phase.
    pub account: Rect,
    /// Categories over time.
    pub graph: Rect,
    /// Column heads.
    pub head: Rect,
    /// Table rows.
    pub rows: Rect,
    /// Sum of the table.
    pub sum: Rect,
    /// Latest iterations, with a head.
    pub iterations: Rect,
    /// Summary of the selected row.
    pub detail: Rect,
    /// Status of the measurement.
    pub status: Rect,
    /// Key hints.
    pub keys: Rect,
}

/// Computes the layout; `None` if the screen is too small for any.
pub fn layout(width: u16, height: u16, devices: usize) -> Option<Layout> {
    let mut bands = Bands::of(width, height)?;
    let when = |enough: bool, rows: u16| if enough { rows } else { 0 };
    let spare = height.saturating_sub(30);
    let header = bands.down(1);
    let tabs = bands.down(when(height >= MIN_HEIGHT, 1));
    let devices = bands.down(when(devices > 1 && height >= 12, 1));
    let account = bands.down(when(height >= 8, 1));
    let graph = bands.down(when(height >= 18, height / 5 + 1 + spare / 3));
    let keys = bands.up(when(height >= 7, 1));
    let status = bands.up(1);
    let detail = bands.up(when(height >= 12, 1));
    let iterations = bands.up(when(height >= 22, height / 6 + spare / 5));
    let sum = bands.up(when(height >= 10, 1));
    let head = bands.down(when(height >= 5, 1));
    let rows = bands.between();
    Some(Layout {
        header,
        tabs,
        devices,
        account,
        graph,
        head,
        rows,
        sum,
        iterations,
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
        for devices in [1, 2] {
            assert_filled(|width, height| {
                let l = layout(width, height, devices).unwrap();
                assert!(l.rows.height >= 1, "{width}x{height}");
                vec![
                    l.header,
                    l.tabs,
                    l.devices,
                    l.account,
                    l.graph,
                    l.head,
                    l.rows,
                    l.sum,
                    l.iterations,
                    l.detail,
                    l.status,
                    l.keys,
                ]
            });
        }
    }

    #[test]
    fn a_screen_of_24_lines_leaves_seven_to_the_categories() {
        assert!(layout(80, 24, 1).unwrap().rows.height >= 7);
    }
}

//! Layout of the screen of tensors.

use ratatui::layout::Rect;

use super::super::layout::Bands;
use super::super::tabs::MIN_HEIGHT;

/// Areas of the screen; an area without space is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Program, command and process.
    pub header: Rect,
    /// Tab bar.
    pub tabs: Rect,
    /// Device tabs.
    pub devices: Rect,
    /// The allocator's total and its parts.
    pub account: Rect,
    /// Column heads.
    pub head: Rect,
    /// Table rows.
    pub rows: Rect,
    /// Sum of the rows shown.
    pub sum: Rect,
    /// Summary of the selected row.
    pub detail: Rect,
    /// Time and pause of the snapshot.
    pub status: Rect,
    /// Key hints, or the prompt.
    pub keys: Rect,
}

/// Computes the layout; `None` if the screen is too small for any.
pub fn layout(width: u16, height: u16) -> Option<Layout> {
    let mut bands = Bands::of(width, height)?;
    let when = |enough: bool, rows: u16| if enough { rows } else { 0 };
    let header = bands.down(1);
    let tabs = bands.down(when(height >= MIN_HEIGHT, 1));
    let devices = bands.down(when(height >= 12, 1));
    let account = bands.down(when(height >= 8, 1));
    let keys = bands.up(when(height >= 7, 1));
    let status = bands.up(1);
    let detail = bands.up(when(height >= 12, 1));
    let sum = bands.up(when(height >= 10, 1));
    let head = bands.down(when(height >= 5, 1));
    let rows = bands.between();
    Some(Layout {
        header,
        tabs,
        devices,
        account,
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
        assert_filled(|width, height| {
            let l = layout(width, height).unwrap();
            assert!(l.rows.height >= 1, "{width}x{height}");
            vec![
                l.header, l.tabs, l.devices, l.account, l.head, l.rows, l.sum, l.detail, l.status,
                l.keys,
            ]
        });
        assert_eq!(layout(23, 50), None);
    }
}

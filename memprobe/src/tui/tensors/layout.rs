//! Where everything stands on the screen of tensors.

use ratatui::layout::Rect;

use super::super::layout::Bands;

/// The parts of the screen; those without room are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Whose tensors they are.
    pub header: Rect,
    /// The devices to choose from.
    pub devices: Rect,
    /// What the allocator has handed out, and what explains it.
    pub account: Rect,
    /// The heads of the columns.
    pub head: Rect,
    /// The rows of the table.
    pub rows: Rect,
    /// What the rows shown come to.
    pub sum: Rect,
    /// The selected row in full.
    pub detail: Rect,
    /// When it was taken, and at what cost.
    pub status: Rect,
    /// Keys, or the prompt.
    pub keys: Rect,
}

/// The layout of a screen; `None` if it is too small for any.
pub fn layout(width: u16, height: u16) -> Option<Layout> {
    let mut bands = Bands::of(width, height)?;
    let when = |enough: bool, rows: u16| if enough { rows } else { 0 };
    let header = bands.down(1);
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
                l.header, l.devices, l.account, l.head, l.rows, l.sum, l.detail, l.status, l.keys,
            ]
        });
        assert_eq!(layout(23, 50), None);
    }
}

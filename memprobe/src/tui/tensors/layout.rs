//! Where everything stands on the screen of tensors.

use ratatui::layout::Rect;

use super::super::layout::SMALLEST;

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
    let header = down(1);
    let devices = down(when(height >= 12, 1));
    let account = down(when(height >= 8, 1));
    let keys = up(when(height >= 7, 1));
    let status = up(1);
    let detail = up(when(height >= 12, 1));
    let sum = up(when(height >= 10, 1));
    let head = down(when(height >= 5, 1));
    let rows = Rect::new(0, top, width, bottom - top);
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
    use super::*;

    #[test]
    fn parts_fill_every_screen_without_overlapping() {
        for (width, height) in (24..260)
            .step_by(7)
            .flat_map(|width| (4..90).map(move |height| (width, height)))
        {
            let l = layout(width, height).unwrap();
            let parts = [
                l.header, l.devices, l.account, l.head, l.rows, l.sum, l.detail, l.status, l.keys,
            ];
            let area: u32 = parts.iter().map(|part| part.area()).sum();
            assert_eq!(area, u32::from(width) * u32::from(height));
            for (at, part) in parts.iter().enumerate() {
                assert!(part.right() <= width && part.bottom() <= height);
                assert!(parts[at + 1..].iter().all(|other| !part.intersects(*other)));
            }
            assert!(l.rows.height >= 1, "{width}x{height}");
        }
        assert_eq!(layout(23, 50), None);
    }
}

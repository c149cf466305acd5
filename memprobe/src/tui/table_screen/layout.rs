//! Layout of a table screen.

use ratatui::layout::Rect;

use super::super::bars::MIN_HEIGHT;

/// Minimum width for source text beside the table; below it goes beneath the table.
pub const SIDE_BY_SIDE: u16 = 150;
/// Minimum columns and rows of a screen: title, heads, two rows, status and keys. Smaller ones show a message.
pub const SMALLEST: (u16, u16) = (40, 6);

/// Rows that a screen needs around its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Rows of tabs, if the screen is high enough.
    pub tabs: u16,
    /// Device tabs, or devices of the driver.
    pub devices: u16,
    pub totals: u16,
    pub graph: u16,
    pub second: u16,
    pub detail: u16,
    pub source: bool,
}

/// Areas of the screen; an area without space is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScreenLayout {
    pub header: Rect,
    pub tabs: Rect,
    pub devices: Rect,
    pub totals: Rect,
    pub graph: Rect,
    pub head: Rect,
    pub rows: Rect,
    pub sum: Rect,
    pub second: Rect,
    pub detail: Rect,
    pub source: Rect,
    pub status: Rect,
    pub keys: Rect,
}

impl ScreenLayout {
    /// Returns the area of overlays: between the last line of the title and the status line.
    pub fn body(&self) -> Rect {
        let (title, top) = (self.tabs, self.tabs.bottom());
        Rect::new(title.x, top, title.width, self.status.y.saturating_sub(top))
    }

    /// Returns true if the layout is within `area`. The terminal may have shrunk since the last resize event.
    pub fn is_within(&self, area: Rect) -> bool {
        let bottom = self.status.bottom().max(self.keys.bottom());
        bottom <= area.height && self.header.width <= area.width
    }
}

/// Computes the layout; `None` if the screen is too small for any.
pub fn layout(width: u16, height: u16, needs: Needs) -> Option<ScreenLayout> {
    if width < SMALLEST.0 || height < SMALLEST.1 {
        return None;
    }
    let when = |enough: bool, rows: u16| if enough { rows } else { 0 };
    let (mut top, mut bottom) = (0, height);
    let mut down = |rows: u16| {
        top += rows;
        Rect::new(0, top - rows, width, rows)
    };
    let header = down(1);
    let tabs = down(when(height >= MIN_HEIGHT, needs.tabs));
    let devices = down(needs.devices);
    let totals = down(needs.totals);
    let graph = down(needs.graph);
    let mut up = |rows: u16| {
        bottom -= rows;
        Rect::new(0, bottom, width, rows)
    };
    let keys = up(1);
    let status = up(1);
    let detail = up(needs.detail);
    let second = up(needs.second);
    let sum = up(when(height >= 10, 1));
    let body = Rect::new(0, top, width, bottom - top);
    let (table, source) = split(body, needs.source);
    let (head, rows) = cut_at(table, when(table.height >= 2, 1));
    Some(ScreenLayout {
        header,
        tabs,
        devices,
        totals,
        graph,
        head,
        rows,
        sum,
        second,
        detail,
        source,
        status,
        keys,
    })
}

fn split(body: Rect, source: bool) -> (Rect, Rect) {
    if !source {
        cut_at(body, body.height)
    } else if body.width >= SIDE_BY_SIDE {
        let left = body.width * 3 / 5;
        let right = Rect::new(left, body.y, body.width - left, body.height);
        (Rect::new(body.x, body.y, left, body.height), right)
    } else if body.height >= 8 {
        cut_at(body, body.height - body.height / 2)
    } else {
        // Without space for both, the table keeps its head and one row.
        cut_at(body, body.height.min(2))
    }
}

/// Divides an area into its first rows and the others.
pub fn cut_at(area: Rect, rows: u16) -> (Rect, Rect) {
    let first = Rect::new(area.x, area.y, area.width, rows);
    let left = area.height - rows;
    let others = Rect::new(area.x, first.bottom(), area.width, left);
    (first, others)
}

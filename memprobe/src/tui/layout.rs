//! Layout of the screen of lines, and helpers for the layouts of all screens.

use ratatui::layout::Rect;

use super::tabs::MIN_HEIGHT;

/// Minimum width for source text beside the table; below it goes beneath the table.
const SIDE_BY_SIDE: u16 = 150;
/// Minimum height for both the graph and source text beneath the table.
const MIN_HEIGHT_FOR_BOTH: u16 = 32;
/// Minimum columns and rows of a screen; smaller ones show a message.
pub const SMALLEST: (u16, u16) = (24, 4);

/// Inputs of the layout besides the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Number of devices.
    pub devices: usize,
    /// True if source text is shown.
    pub source: bool,
}

/// Areas of the screen; an area without space is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Process, device and clock.
    pub header: Rect,
    /// Tab bar.
    pub tabs: Rect,
    /// Device tabs.
    pub devices: Rect,
    /// Allocated, reserved, peak, cached.
    pub totals: Rect,
    /// Graph with its axis.
    pub graph: Rect,
    /// Column heads.
    pub head: Rect,
    /// Table rows.
    pub rows: Rect,
    /// Sum of the table.
    pub sum: Rect,
    /// Summary of the selected row.
    pub detail: Rect,
    /// Source text around the selected line.
    pub source: Rect,
    /// Status of the measurement.
    pub status: Rect,
    /// Key hints, or the prompt.
    pub keys: Rect,
}

/// Rows of a screen, allotted from its top and its bottom.
pub(super) struct Bands {
    width: u16,
    top: u16,
    bottom: u16,
}

impl Bands {
    /// Starts with a whole screen; `None` if it is too small for any layout.
    pub(super) fn of(width: u16, height: u16) -> Option<Self> {
        (width >= SMALLEST.0 && height >= SMALLEST.1).then_some(Self {
            width,
            top: 0,
            bottom: height,
        })
    }

    /// Takes the next rows from the top.
    pub(super) fn down(&mut self, rows: u16) -> Rect {
        self.top += rows;
        Rect::new(0, self.top - rows, self.width, rows)
    }

    /// Takes the next rows from the bottom.
    pub(super) fn up(&mut self, rows: u16) -> Rect {
        self.bottom -= rows;
        Rect::new(0, self.bottom, self.width, rows)
    }

    /// Returns the remaining rows.
    pub(super) fn between(&self) -> Rect {
        Rect::new(0, self.top, self.width, self.bottom - self.top)
    }
}

/// Returns true if the first and the last parts of a layout are within `area`. The terminal may have shrunk
/// since the last resize event.
pub(super) fn are_within(area: Rect, header: Rect, last: [Rect; 2]) -> bool {
    let bottom = last[0].bottom().max(last[1].bottom());
    bottom <= area.height && header.width <= area.width
}

/// Returns the area of overlays: between the last line of the title and the status line.
pub(super) fn beneath(title: Rect, status: Rect) -> Rect {
    Rect {
        y: title.bottom(),
        height: status.y.saturating_sub(title.bottom()),
        ..title
    }
}

/// Returns the first visible row of a table, so that the selected row is visible and the screen full.
pub(super) fn scrolled(offset: usize, cursor: usize, rows: usize, height: u16) -> usize {
    let height = usize::from(height).max(1);
    let lowest = cursor.saturating_sub(height - 1);
    let last = rows.saturating_sub(height);
    offset.clamp(lowest.min(cursor), cursor).min(last)
}

/// Returns the rows that a page key moves by.
pub(super) fn page(height: u16) -> isize {
    isize::try_from(height).unwrap_or(1).max(2) - 1
}

/// Asserts that the areas fill screens of all sizes without overlapping.
#[cfg(test)]
pub(super) fn assert_filled(parts_of: impl Fn(u16, u16) -> Vec<Rect>) {
    for (width, height) in (24..260)
        .step_by(7)
        .flat_map(|width| (4..90).map(move |height| (width, height)))
    {
        let parts = parts_of(width, height);
        let area: u32 = parts.iter().map(|part| part.area()).sum();
        let whole = u32::from(width) * u32::from(height);
        assert_eq!(area, whole, "{width}x{height}");
        for (at, part) in parts.iter().enumerate() {
            assert!(part.right() <= width && part.bottom() <= height);
            assert!(parts[at + 1..].iter().all(|other| !part.intersects(*other)));
        }
    }
}

/// Computes the layout; `None` if the screen is too small for any.
pub fn layout(width: u16, height: u16, needs: Needs) -> Option<Layout> {
    let mut bands = Bands::of(width, height)?;
    let when = |enough: bool, rows: u16| if enough { rows } else { 0 };

    let header = bands.down(1);
    let tabs = bands.down(when(height >= MIN_HEIGHT, 1));
    let devices = bands.down(when(needs.devices > 1 && height >= 12, 1));
    let totals = bands.down(if height >= 14 {
        2
    } else {
        when(height >= 8, 1)
    });
    // Source text beneath the table takes the graph's place on a screen of usual height.
    let crowded = needs.source && width < SIDE_BY_SIDE && height < MIN_HEIGHT_FOR_BOTH;
    let graph = bands.down(when(height >= 19 && !crowded, height / 5 + 1));
    let keys = bands.up(when(height >= 7, 1));
    let status = bands.up(1);
    let detail = bands.up(when(height >= 12, 1));
    let sum = bands.up(when(height >= 10, 1));
    let body = bands.between();
    let (table, source) = split(body, needs.source);
    let head = Rect {
        height: table.height.min(1),
        ..table
    };
    let rows = Rect {
        y: head.bottom(),
        height: table.height - head.height,
        ..table
    };
    Some(Layout {
        header,
        tabs,
        devices,
        totals,
        graph,
        head,
        rows,
        sum,
        detail,
        source,
        status,
        keys,
    })
}

fn split(body: Rect, source: bool) -> (Rect, Rect) {
    let none = Rect { height: 0, ..body };
    if !source {
        (body, none)
    } else if body.width >= SIDE_BY_SIDE {
        let left = body.width * 3 / 5;
        let right = Rect {
            x: left,
            width: body.width - left,
            ..body
        };
        (
            Rect {
                width: left,
                ..body
            },
            right,
        )
    } else if body.height >= 8 {
        let beneath = body.height / 2;
        let table = Rect {
            height: body.height - beneath,
            ..body
        };
        (
            table,
            Rect {
                y: table.bottom(),
                height: beneath,
                ..body
            },
        )
    } else {
        // Without space for both, the table keeps its head and one row.
        let table = Rect {
            height: body.height.min(2),
            ..body
        };
        (
            table,
            Rect {
                y: table.bottom(),
                height: body.height - table.height,
                ..body
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_every_screen_without_overlapping() {
        for (devices, source) in [(1, false), (1, true), (3, false), (3, true)] {
            let needs = Needs { devices, source };
            assert_filled(|width, height| {
                let l = layout(width, height, needs).unwrap();
                vec![
                    l.header, l.tabs, l.devices, l.totals, l.graph, l.head, l.rows, l.sum,
                    l.detail, l.source, l.status, l.keys,
                ]
            });
        }
    }

    #[test]
    fn a_screen_of_24_lines_leaves_ten_to_the_table() {
        let layout = layout(
            80,
            24,
            Needs {
                devices: 1,
                source: false,
            },
        )
        .unwrap();
        assert!(layout.rows.height >= 10, "{layout:?}");
    }

    #[test]
    fn tiny_screens_have_no_layout() {
        assert_eq!(
            layout(
                0,
                0,
                Needs {
                    devices: 0,
                    source: false
                }
            ),
            None
        );
        assert_eq!(
            layout(
                23,
                50,
                Needs {
                    devices: 0,
                    source: false
                }
            ),
            None
        );
    }
}

//! Where everything stands on a screen of a given size.

use ratatui::layout::Rect;

/// Beside the table from this width on, else beneath it.
const SIDE_BY_SIDE: u16 = 150;
/// The graph and the source text beneath the table both have room from this height on.
const ROOM_FOR_BOTH: u16 = 32;
/// Smaller screens are told so.
pub const SMALLEST: (u16, u16) = (24, 4);

/// What the layout depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// How many devices there are to choose from.
    pub devices: usize,
    /// Whether source text is shown.
    pub source: bool,
}

/// The parts of the screen; those without room are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// What is looked at, for how long.
    pub header: Rect,
    /// The devices to choose from.
    pub devices: Rect,
    /// Allocated, reserved, peak, cached.
    pub totals: Rect,
    /// The graph with its axis.
    pub graph: Rect,
    /// The heads of the columns.
    pub head: Rect,
    /// The rows of the table.
    pub rows: Rect,
    /// What the table adds up to.
    pub sum: Rect,
    /// The selected line in full.
    pub detail: Rect,
    /// The text around the selected line.
    pub source: Rect,
    /// How the measurement is doing.
    pub status: Rect,
    /// Keys, or the prompt.
    pub keys: Rect,
}

/// Rows of a screen that are given away from its top and its bottom.
pub(super) struct Bands {
    width: u16,
    top: u16,
    bottom: u16,
}

impl Bands {
    /// Those of a screen; `None` if it is too small for any layout.
    pub(super) fn of(width: u16, height: u16) -> Option<Self> {
        (width >= SMALLEST.0 && height >= SMALLEST.1).then_some(Self {
            width,
            top: 0,
            bottom: height,
        })
    }

    /// The next rows from the top.
    pub(super) fn down(&mut self, rows: u16) -> Rect {
        self.top += rows;
        Rect::new(0, self.top - rows, self.width, rows)
    }

    /// The next rows from the bottom.
    pub(super) fn up(&mut self, rows: u16) -> Rect {
        self.bottom -= rows;
        Rect::new(0, self.bottom, self.width, rows)
    }

    /// What is left.
    pub(super) fn between(&self) -> Rect {
        Rect::new(0, self.top, self.width, self.bottom - self.top)
    }
}

/// Whether the first and the last parts of a screen are within it: the terminal may have shrunk since
/// its size was last told.
pub(super) fn are_within(area: Rect, header: Rect, last: [Rect; 2]) -> bool {
    let bottom = last[0].bottom().max(last[1].bottom());
    bottom <= area.height && header.width <= area.width
}

/// Where what lies over a screen has room: between its first line and its status.
pub(super) fn beneath_title(area: Rect, status: Rect) -> Rect {
    Rect {
        y: 1,
        height: status.y.saturating_sub(1),
        ..area
    }
}

/// The first row of a table that is shown, so that the selected one is on the screen and the screen full.
pub(super) fn scrolled(offset: usize, cursor: usize, rows: usize, height: u16) -> usize {
    let height = usize::from(height).max(1);
    let lowest = cursor.saturating_sub(height - 1);
    let last = rows.saturating_sub(height);
    offset.clamp(lowest.min(cursor), cursor).min(last)
}

/// How many rows a page of a table of this height turns by.
pub(super) fn page(height: u16) -> isize {
    isize::try_from(height).unwrap_or(1).max(2) - 1
}

/// Checks that the parts of a screen of any size fill it and do not overlap.
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

/// The layout of a screen; `None` if it is too small for any.
pub fn layout(width: u16, height: u16, needs: Needs) -> Option<Layout> {
    let mut bands = Bands::of(width, height)?;
    let when = |enough: bool, rows: u16| if enough { rows } else { 0 };

    let header = bands.down(1);
    let devices = bands.down(when(needs.devices > 1 && height >= 12, 1));
    let totals = bands.down(if height >= 14 {
        2
    } else {
        when(height >= 8, 1)
    });
    // Source text beneath the table needs the room of the graph on a screen of usual height.
    let crowded = needs.source && width < SIDE_BY_SIDE && height < ROOM_FOR_BOTH;
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
        // No room for both: the table keeps its head and the selected row.
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
                    l.header, l.devices, l.totals, l.graph, l.head, l.rows, l.sum, l.detail,
                    l.source, l.status, l.keys,
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

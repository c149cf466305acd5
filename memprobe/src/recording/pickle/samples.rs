//! Pickles for tests.

/// Plain data, written as CPython's pickler writes it in protocol 2.
#[derive(Clone)]
pub(super) enum Plain {
    None,
    Int(i64),
    Text(&'static str),
    List(Vec<Plain>),
    Dict(Vec<(&'static str, Plain)>),
    /// A list that refers to one value so many times.
    Same(usize, Box<Plain>),
}

impl Plain {
    pub fn dict(pairs: impl IntoIterator<Item = (&'static str, Self)>) -> Self {
        Self::Dict(pairs.into_iter().collect())
    }

    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        Self::List(items.into_iter().collect())
    }

    pub fn same(count: usize, value: Self) -> Self {
        Self::Same(count, value.into())
    }

    /// A text of so many bytes.
    pub fn long(length: usize) -> Self {
        Self::Text("x".repeat(length).leak())
    }

    /// This dict with more values, which may have its keys again.
    pub fn with(self, more: impl IntoIterator<Item = (&'static str, Self)>) -> Self {
        let Self::Dict(mut pairs) = self else {
            unreachable!("only a dict has keys");
        };
        pairs.extend(more);
        Self::Dict(pairs)
    }

    pub fn pickled(&self) -> Vec<u8> {
        let mut to = vec![b'\x80', 2];
        self.write(&mut to);
        to.push(b'.');
        to
    }

    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::None => to.push(b'N'),
            Self::Int(number) => {
                to.extend([b'\x8a', 8]);
                to.extend(number.to_le_bytes());
            }
            Self::Text(text) => write_text(text, to),
            Self::List(items) => {
                to.extend(b"](");
                items.iter().for_each(|item| item.write(to));
                to.push(b'e');
            }
            Self::Dict(pairs) => {
                to.extend(b"}(");
                for (key, value) in pairs {
                    write_text(key, to);
                    value.write(to);
                }
                to.push(b'u');
            }
            Self::Same(count, value) => {
                to.extend(b"](");
                value.write(to);
                // The position is a number that no other value has.
                let memo = (to.len() as u32).to_le_bytes();
                to.extend([&b"r"[..], &memo].concat());
                for _ in 1..*count {
                    to.extend([&b"j"[..], &memo].concat());
                }
                to.push(b'e');
            }
        }
    }
}

fn write_text(text: &str, to: &mut Vec<u8>) {
    to.push(b'X');
    to.extend((text.len() as u32).to_le_bytes());
    to.extend(text.as_bytes());
}

/// A stack of one line of Python in `train.py`, below it the allocator.
pub(super) fn line(line: i64) -> Plain {
    let frame = |file, line, name| {
        Plain::dict([
            ("filename", Plain::Text(file)),
            ("line", Plain::Int(line)),
            ("name", Plain::Text(name)),
        ])
    };
    Plain::list([
        frame("??", 0, "c10::cuda::CUDACachingAllocator::malloc"),
        frame("/home/me/train.py", line, "step"),
        frame("??", 0, "main"),
    ])
}

pub(super) fn event(
    action: &'static str,
    at: i64,
    size: i64,
    time: i64,
    frames: Option<i64>,
) -> Plain {
    let mut pairs = vec![
        ("action", Plain::Text(action)),
        ("addr", Plain::Int(at)),
        ("size", Plain::Int(size)),
        ("stream", Plain::Int(0)),
        ("time_us", Plain::Int(1_700_000_000_000_000 + time)),
    ];
    pairs.extend(frames.map(|number| ("frames", line(number))));
    Plain::Dict(pairs)
}

pub(super) fn block(at: i64, size: i64, state: &'static str, frames: Option<i64>) -> Plain {
    let mut pairs = vec![
        ("address", Plain::Int(at)),
        ("size", Plain::Int(size)),
        ("requested_size", Plain::Int(size - 12)),
        ("state", Plain::Text(state)),
    ];
    pairs.extend(frames.map(|number| ("frames", line(number))));
    Plain::Dict(pairs)
}

/// A segment of `cuda:0`.
pub(super) fn segment(at: i64, size: i64, blocks: Vec<Plain>) -> Plain {
    Plain::dict([
        ("device", Plain::Int(0)),
        ("address", Plain::Int(at)),
        ("total_size", Plain::Int(size)),
        ("stream", Plain::Int(0)),
        ("blocks", Plain::List(blocks)),
    ])
}

/// A snapshot of one device.
pub(super) fn snapshot(segments: Vec<Plain>, trace: Vec<Plain>) -> Plain {
    Plain::dict([
        ("segments", Plain::List(segments)),
        ("device_traces", Plain::list([Plain::List(trace)])),
        (
            "allocator_settings",
            Plain::dict([("expandable_segments", Plain::None)]),
        ),
    ])
}

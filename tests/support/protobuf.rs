//! Reads protobuf by its wire format alone, so that exports are not checked with the code that wrote them.

/// A message as its fields, in order.
#[derive(Debug)]
pub struct ProtoMessage<'a>(Vec<(u64, Field<'a>)>);

#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> ProtoMessage<'a> {
    /// Parses a message.
    ///
    /// # Panics
    ///
    /// If the bytes are none.
    pub fn parse(mut bytes: &'a [u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut bytes)),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (content, rest) = bytes.split_at(length);
                    bytes = rest;
                    Field::Bytes(content)
                }
                other => panic!("wire type {other}"),
            };
            fields.push((tag >> 3, field));
        }
        Self(fields)
    }

    fn all(&self, number: u64) -> impl Iterator<Item = Field<'a>> {
        let fields = self.0.iter();
        fields.filter_map(move |(of, field)| (*of == number).then_some(*field))
    }

    /// A number; 0 if it is absent, as proto3 has it.
    pub fn number(&self, number: u64) -> u64 {
        self.numbers(number).last().copied().unwrap_or(0)
    }

    /// Repeated numbers, packed or not.
    pub fn numbers(&self, number: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for field in self.all(number) {
            match field {
                Field::Number(value) => numbers.push(value),
                Field::Bytes(mut packed) => {
                    while !packed.is_empty() {
                        numbers.push(varint(&mut packed));
                    }
                }
            }
        }
        numbers
    }

    pub fn messages(&self, number: u64) -> Vec<ProtoMessage<'a>> {
        let parts = self.all(number).filter_map(|field| match field {
            Field::Bytes(bytes) => Some(ProtoMessage::parse(bytes)),
            Field::Number(_) => None,
        });
        parts.collect()
    }

    pub fn texts(&self, number: u64) -> Vec<&'a str> {
        let texts = self.all(number).filter_map(|field| match field {
            Field::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            Field::Number(_) => None,
        });
        texts.collect()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number of more than 64 bits")
}

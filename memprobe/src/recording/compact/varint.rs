//! Numbers of variable length: seven bits a byte, low bits first, the high bit set in all bytes but the last (LEB128).

/// Appends a number in one to ten bytes.
#[inline]
pub(super) fn push(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends the difference between two numbers, modulo 2^64, so that small ones of both signs are short (zigzag).
#[inline]
pub(super) fn push_difference(out: &mut Vec<u8>, from: u64, to: u64) {
    let difference = to.wrapping_sub(from) as i64;
    push(out, ((difference << 1) ^ (difference >> 63)) as u64);
}

/// Appends a length and these bytes.
pub(super) fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Rest of untrusted bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct VarintReader<'a>(pub(super) &'a [u8]);

const ENDS: &str = "a column ends too early";

impl<'a> VarintReader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, &'static str> {
        let (first, rest) = self.0.split_first().ok_or(ENDS)?;
        self.0 = rest;
        Ok(*first)
    }

    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, &'static str> {
        match self.0 {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.0 = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_number(),
        }
    }

    /// Reads a number of any length.
    fn long_number(&mut self) -> Result<u64, &'static str> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number of more than 64 bits")
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, &'static str> {
        let number = self.number()?;
        u32::try_from(number).map_err(|_| "a number of more than 32 bits")
    }

    /// Reads a count of things that take at least one byte each.
    pub(super) fn count(&mut self) -> Result<usize, &'static str> {
        let number = self.number()?;
        let count = usize::try_from(number).map_err(|_| ENDS)?;
        if count > self.0.len() {
            return Err(ENDS);
        }
        Ok(count)
    }

    /// Reads a difference, and returns the number that it leads to.
    #[inline]
    pub(super) fn after(&mut self, from: u64) -> Result<u64, &'static str> {
        let coded = self.number()?;
        let difference = (coded >> 1) ^ (coded & 1).wrapping_neg();
        Ok(from.wrapping_add(difference))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], &'static str> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(ENDS)?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_come_back() {
        for number in [0, 1, 127, 128, 16_383, 16_384, u64::MAX >> 1, u64::MAX] {
            let mut bytes = Vec::new();
            push(&mut bytes, number);
            let mut reader = VarintReader(&bytes);
            assert_eq!((reader.number(), reader.is_empty()), (Ok(number), true));
            for from in [0, 5, u64::MAX / 2, u64::MAX] {
                let mut bytes = Vec::new();
                push_difference(&mut bytes, from, number);
                assert_eq!(VarintReader(&bytes).after(from), Ok(number));
            }
        }
    }

    #[test]
    fn small_steps_take_one_byte() {
        for (from, to) in [(100, 163), (100, 37), (u64::MAX, 3)] {
            let mut bytes = Vec::new();
            push_difference(&mut bytes, from, to);
            assert_eq!(bytes.len(), 1, "{from} to {to}");
        }
    }

    #[test]
    fn what_is_too_long_or_too_short_is_refused() {
        assert!(VarintReader(&[0x80]).number().is_err());
        assert!(VarintReader(&[0xff; 12]).number().is_err());
        let mut beyond = [0xff; 10];
        beyond[9] = 2;
        assert!(VarintReader(&beyond).number().is_err());
        assert!(VarintReader(&[5, 1, 2]).bytes().is_err());
        assert!(VarintReader(&[0xff, 0xff, 0xff, 0xff, 0x1f]).u32().is_err());
    }
}

//! Elements of numpy's arrays of Python objects. The collector tracks neither these arrays nor their elements.

use super::contents::Step;
use super::{Heap, word_at};
use crate::process::memory::{Cause, ReadMemory, ReadResult};

/// `tp_name` of the class of arrays.
pub(super) const CLASS: &str = "numpy.ndarray";

/// `base`: the object whose memory a view shows. This and the offsets below are those of `PyArrayObject_fields` and
/// `_PyArray_Descr` in `numpy/core/include/numpy/ndarraytypes.h`@v1.26.4, `numpy/_core/include/numpy/ndarraytypes.h`
/// @v2.4.6 to @v2.5.5.
pub(super) const BASE: (&str, u16) = ("base", 48);

/// From `data` to `descr`.
const FIELDS: u64 = 16;
const FIELDS_SIZE: usize = 48;
const DATA: u16 = 0;
const DIMENSION_COUNT: u16 = 8;
const DIMENSIONS: u16 = 16;
const STRIDES: u16 = 24;
const DESCR: u16 = 40;

/// From `kind` to `type_num` of a dtype, and their values in the dtype of objects: `'O'`, `NPY_OBJECT`.
const KIND: u64 = 24;
const OBJECT_KIND: [u8; 2] = *b"OO";
const OBJECT_NUMBER: [u8; 4] = 17_u32.to_le_bytes();

/// `NPY_MAXDIMS`, 32 before numpy 2.
const MAX_DIMENSIONS: u32 = 64;

/// Most elements of one array that are followed.
const MAX_ELEMENTS: u64 = 1 << 20;

#[derive(Debug)]
struct Axis {
    length: u64,
    /// Distance of two elements in bytes; negative in a reversed view.
    stride: i64,
}

impl<M: ReadMemory> Heap<'_, M> {
    /// Calls `each` with the elements of an array of objects, in the order of its `flat`. Other arrays have none.
    pub(super) fn array_elements(
        &self,
        array: u64,
        mut each: impl FnMut(Step, u64),
    ) -> ReadResult<()> {
        let fields: [u8; FIELDS_SIZE] = self.memory.read_array(array.wrapping_add(FIELDS))?;
        if !self.is_of_objects(word_at(&fields, DESCR))? {
            return Ok(());
        }
        let axes = self.axes(array, &fields)?;
        let lengths = axes.iter().map(|axis| axis.length);
        let count = match lengths.clone().any(|length| length == 0) {
            true => 0,
            false => lengths.fold(1, u64::saturating_mul),
        };
        if count > MAX_ELEMENTS {
            return Err(Cause::TooLong.at(array));
        }
        let step = |flat: u64| match &axes[..] {
            [_] => Step::Index(flat),
            [_, row] => Step::Indices((flat / row.length) as u32, (flat % row.length) as u32),
            _ => Step::Flat(flat),
        };
        let mut element = |flat, object| {
            // Elements that `numpy.empty` made are null up to their first use.
            if object != 0 {
                each(step(flat), object);
            }
        };
        let data = word_at(&fields, DATA);
        let mut flats = 0..;
        if is_contiguous(&axes) {
            return self.words(data, count, 8, |object| {
                element(flats.next().unwrap_or_default(), object);
            });
        }
        self.spend(array, count)?;
        (0..count).try_for_each(|flat| {
            let object = self.memory.read_u64(address(data, &axes, flat))?;
            element(flat, object);
            Ok(())
        })
    }

    fn is_of_objects(&self, descr: u64) -> ReadResult<bool> {
        let bytes: [u8; 8] = self.memory.read_array(descr.wrapping_add(KIND))?;
        Ok(bytes[..2] == OBJECT_KIND && bytes[4..] == OBJECT_NUMBER)
    }

    fn axes(&self, array: u64, fields: &[u8; FIELDS_SIZE]) -> ReadResult<Vec<Axis>> {
        let count = word_at(fields, DIMENSION_COUNT) as u32;
        if count > MAX_DIMENSIONS {
            return Err(Cause::NotAsExpected.at(array));
        }
        let (mut lengths, mut strides) = (Vec::new(), Vec::new());
        let count = count.into();
        self.words(word_at(fields, DIMENSIONS), count, 8, |word| {
            lengths.push(word);
        })?;
        self.words(word_at(fields, STRIDES), count, 8, |word| {
            strides.push(word.cast_signed());
        })?;
        let axes = lengths.into_iter().zip(strides);
        Ok(axes
            .map(|(length, stride)| Axis { length, stride })
            .collect())
    }
}

/// True if the elements lie one behind the other in their order.
fn is_contiguous(axes: &[Axis]) -> bool {
    let mut distance = 8_i64;
    axes.iter().rev().all(|axis| {
        let fits = axis.length == 1 || axis.stride == distance;
        distance = distance.wrapping_mul(axis.length.cast_signed());
        fits
    })
}

fn address(data: u64, axes: &[Axis], flat: u64) -> u64 {
    let mut left = flat;
    axes.iter().rev().fold(data, |at, axis| {
        let index = (left % axis.length).cast_signed();
        left /= axis.length;
        at.wrapping_add_signed(axis.stride.wrapping_mul(index))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::heap::fake::FakeHeap;
    use crate::python::versions::LAYOUTS;

    const OBJECTS: ([u8; 2], u32) = (OBJECT_KIND, 17);

    /// Steps to the elements of an array whose memory has the objects 1 to 8 from its third word on.
    fn elements(axes: (&[u64], &[i64]), dtype: ([u8; 2], u32)) -> Option<Vec<(String, u64)>> {
        let mut heap = FakeHeap::new(&LAYOUTS[0]);
        let data = heap.reserve(16 * 8) + 16;
        for object in 1..=8_u64 {
            heap.put_word(data, 8 * (object - 1), object);
        }
        let array = heap.array(data, axes, dtype);
        let (memory, _) = heap.finish();
        let heap = Heap::of(&memory, &LAYOUTS[0]);
        let mut found = Vec::new();
        let read = heap.array_elements(array, |step, object| {
            let mut text = String::new();
            heap.write_step(step, &mut text);
            found.push((text, object));
        });
        read.ok().map(|()| found)
    }

    fn named(elements: &[(&str, u64)]) -> Option<Vec<(String, u64)>> {
        let elements = elements.iter();
        Some(elements.map(|&(name, at)| (name.to_owned(), at)).collect())
    }

    #[test]
    fn elements_have_the_index_that_python_takes() {
        assert_eq!(
            elements((&[2], &[8]), OBJECTS),
            named(&[("[0]", 1), ("[1]", 2)])
        );
        assert_eq!(elements((&[], &[]), OBJECTS), named(&[(".flat[0]", 1)]));
        // A null element, then two objects.
        assert_eq!(elements((&[3], &[-8]), OBJECTS), named(&[("[0]", 1)]));
        assert_eq!(
            elements((&[2, 2], &[8, 32]), OBJECTS),
            named(&[("[0, 0]", 1), ("[0, 1]", 5), ("[1, 0]", 2), ("[1, 1]", 6)])
        );
        let last = elements((&[2, 2, 2], &[32, 16, 8]), OBJECTS).unwrap().pop();
        assert_eq!(last, Some((".flat[7]".to_owned(), 8)));
    }

    #[test]
    fn arrays_of_other_dtypes_and_impossible_ones_have_none() {
        for dtype in [(*b"fd", 12), (OBJECT_KIND, 12), (*b"VV", 17)] {
            assert_eq!(elements((&[2], &[8]), dtype), named(&[]));
        }
        for lengths in [&[0, u64::MAX][..], &[u64::MAX, 0], &[0]] {
            assert_eq!(
                elements((lengths, &[8; 2][..lengths.len()]), OBJECTS),
                named(&[])
            );
        }
        for lengths in [
            &[u64::MAX][..],
            &[1 << 32, 1 << 32],
            &[1; 65],
            &[1 << 20, 2],
        ] {
            let strides = vec![8; lengths.len()];
            assert_eq!(elements((lengths, &strides), OBJECTS), None);
        }
        assert_eq!(elements((&[2], &[i64::MAX]), OBJECTS), None);
    }
}

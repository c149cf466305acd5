use super::*;
use crate::recording::pickle::samples::{Plain, block, segment, snapshot};

fn decoded(bytes: &[u8]) -> Result<Document, PickleError> {
    decode(bytes)
}

fn root(bytes: &[u8]) -> Value {
    decoded(bytes).expect("a pickle").root
}

fn reason(bytes: &[u8]) -> String {
    match decoded(bytes).unwrap_err() {
        PickleError::Damaged { offset, reason } => format!("{offset}: {reason}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn numbers_of_each_length_are_read() {
    // pickle.dumps(number, 4) of CPython 3.13, without the frame.
    assert_eq!(root(b"\x80\x04K\xff."), Value::Int(255));
    assert_eq!(root(b"\x80\x04M\xff\xff."), Value::Int(65_535));
    assert_eq!(root(b"\x80\x04J\xff\xff\xff\xff."), Value::Int(-1));
    assert_eq!(
        root(b"\x80\x04\x8a\x06\x00\x00\x00\x00\x00\x7f."),
        Value::Int(0x7f00_0000_0000)
    );
    assert_eq!(
        root(b"\x80\x04\x8a\x05\x00\x00\x00\x00\x80."),
        Value::Int(-(1 << 39))
    );
    assert_eq!(root(b"\x80\x04\x8a\x00."), Value::Int(0));
    assert_eq!(
        root(b"\x80\x04\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."),
        Value::Other
    );
    assert_eq!(
        root(b"\x80\x04G?\xf8\x00\x00\x00\x00\x00\x00."),
        Value::Float(1.5)
    );
}

#[test]
fn a_memo_stands_for_the_same_list() {
    // pickle.dumps([a := [1], a], 4) of CPython 3.13.
    let document =
        decoded(b"\x80\x04\x95\x0e\x00\x00\x00\x00\x00\x00\x00]\x94(]\x94K\x01ah\x01e.").unwrap();
    let Value::List(outer) = document.root else {
        panic!("a list");
    };
    let [first, second] = document.list(outer) else {
        panic!("two items");
    };
    assert_eq!(first, second);
}

#[test]
fn the_latest_of_two_values_of_a_key_counts() {
    let plain = Plain::dict([("a", Plain::Int(1)), ("a", Plain::Int(2))]);
    let document = decoded(&plain.pickled()).unwrap();
    let Value::Dict(root) = document.root else {
        panic!("a dict");
    };
    assert_eq!(document.get(root, "a"), Some(Value::Int(2)));
    assert_eq!(document.get(root, "b"), None);
}

#[test]
fn names_to_import_and_calls_are_refused() {
    // pickle.dumps(os.system, 2) and what would call it.
    for bytes in [
        &b"\x80\x02cposix\nsystem\n."[..],
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
        b"\x80\x02(X\x02\x00\x00\x00idtR.",
        b"\x80\x02})\x81.",
        b"\x80\x02}}b.",
        b"\x80\x02K\x01Q.",
        b"\x80\x05\x97.",
    ] {
        let refused = decoded(bytes).unwrap_err();
        assert!(matches!(refused, PickleError::Object { .. }), "{refused:?}");
    }
}

#[test]
fn a_damaged_pickle_is_refused_with_its_place() {
    insta::assert_snapshot!(
        [
            reason(b"hello"),
            reason(b"\x80\x09N."),
            reason(b"\x80\x02."),
            reason(b"\x80\x02e."),
            reason(b"\x80\x02(."),
            reason(b"\x80\x02N(K\x01e."),
            reason(b"\x80\x02}K\x01K\x02a."),
            reason(b"\x80\x02}(K\x01u."),
            reason(b"\x80\x02h\x07."),
            reason(b"\x80\x02\xff."),
            reason(b"\x80\x02X\xff\xff\xff\x7f."),
        ]
        .join("\n")
    );
}

#[test]
fn a_pickle_that_is_cut_anywhere_is_refused() {
    let blocks = vec![block(0x1000, 512, "active_allocated", Some(7))];
    let whole = snapshot(vec![segment(0x1000, 2 << 20, blocks)], Vec::new()).pickled();
    assert!(decoded(&whole).is_ok());
    for length in 0..whole.len() {
        let cut = decoded(&whole[..length]).unwrap_err();
        assert!(
            matches!(cut, PickleError::Truncated { .. }),
            "at {length}: {cut:?}"
        );
    }
}

#[test]
fn any_changed_byte_ends_in_a_document_or_an_error() {
    let blocks = vec![block(0x1000, 512, "active_allocated", Some(7))];
    let whole = snapshot(vec![segment(0x1000, 2 << 20, blocks)], Vec::new()).pickled();
    for at in 0..whole.len() {
        for value in 0..=u8::MAX {
            let mut changed = whole.clone();
            changed[at] = value;
            _ = crate::recording::pickle::read(&*changed);
        }
    }
}

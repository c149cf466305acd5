use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::event::tensors::{Consistency, DType, Name, Tensor};
use crate::event::{Address, Bytes, TimeNs};
use crate::recording::write::tensors::write_tensors;
use crate::tensors::samples::{later, server, training};

fn written(snapshot: &TensorSnapshot) -> Vec<u8> {
    let mut text = Vec::new();
    write_tensors(snapshot, "0.1.0", &mut text).unwrap();
    text
}

fn error(text: &[u8]) -> String {
    read_tensors(text).unwrap_err().to_string()
}

#[test]
fn what_was_written_is_what_is_read() {
    for snapshot in [training(), later(), server(), TensorSnapshot::default()] {
        let text = written(&snapshot);
        assert_eq!(read_tensors(&*text).unwrap(), snapshot);
        serde_json::from_slice::<serde_json::Value>(&text).unwrap();
    }
}

#[test]
fn a_kv_cache_whose_parts_do_not_add_up_is_refused() {
    let text = String::from_utf8(written(&server())).unwrap();
    let wrong = text.replace("\"cached\":1", "\"cached\":2");
    assert_ne!(text, wrong);
    assert!(error(wrong.as_bytes()).contains("a KV cache whose parts do not add up"));
}

#[test]
fn bytes_that_tensors_and_blocks_hold_come_to_what_the_allocator_says() {
    let text = written(&training());
    let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let held = document["tensors"].as_array().unwrap().iter();
    let held: u64 = held
        .map(|tensor| tensor["allocated"].as_u64().unwrap())
        .sum();
    // Host storages are not part of the allocator's total.
    let host = 16 << 20;
    assert_eq!(
        Some(held - host),
        document["totals"][0]["allocated"].as_u64()
    );
    assert_eq!(document["totals"][0]["remainder"], 0);
}

#[test]
fn the_document_as_it_is_written() {
    let mut snapshot = training();
    snapshot.tensors.truncate(2);
    snapshot.storages.truncate(2);
    snapshot.blocks.truncate(3);
    snapshot.devices[0].totals.allocated = Bytes(48 << 20);
    insta::assert_snapshot!(String::from_utf8(written(&snapshot)).unwrap());
}

#[test]
fn what_is_no_snapshot_is_said_with_what_to_do() {
    for (text, part) in [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("[\n", "not a snapshot of memprobe"),
        ("\u{0}", "not a snapshot of memprobe"),
        (r#"{"a":1}"#, "not a snapshot of memprobe"),
        (r#"{"memprobe_snapshot":-1}"#, "not a snapshot of memprobe"),
        (r#"{"memprobe_snapshot":99}"#, "update memprobe"),
        (r#"{"memprobe_snapshot":99,"new"#, "update memprobe"),
        (r#"{"memprobe_snapshot":1}"#, "missing field `command`"),
    ] {
        let said = error(text.as_bytes());
        assert!(said.contains(part), "{text}: {said}");
    }
    assert!(error(b"\xff\xfe").contains("not a snapshot of memprobe"));
}

#[test]
fn a_file_cut_anywhere_is_said_to_be_cut() {
    let text = written(&training());
    for length in (30..text.len() - 2).step_by(97) {
        let said = error(&text[..length]);
        assert!(said.contains("its end is missing"), "{length}: {said}");
    }
}

#[test]
fn places_that_are_not_there_are_refused() {
    let text = String::from_utf8(written(&training())).unwrap();
    for (right, wrong, part) in [
        (
            "\"storage_index\":0",
            "\"storage_index\":999",
            "a storage that is not there",
        ),
        (
            "\"gradient_of\":[0]",
            "\"gradient_of\":[999]",
            "a tensor that is not there",
        ),
        (
            "\"kind\":\"parameter\"",
            "\"kind\":\"secret\"",
            "\"secret\" is no kind of tensor",
        ),
        (
            "\"device\":\"cuda:0\"",
            "\"device\":\"cuda:x\"",
            "\"cuda:x\" is no device",
        ),
        ("\"pause_ms\":12.345", "\"pause_ms\":-1.0", "pause_ms"),
        (
            "\"dtype\":\"float32\"",
            "\"dtype\":\"float33\"",
            "\"float33\" is no dtype",
        ),
        ("\"object\":\"0x", "\"object\":\"-0x", "is no address"),
    ] {
        let wrong = text.replacen(right, wrong, 1);
        assert_ne!(wrong, text, "{right}");
        let said = error(wrong.as_bytes());
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn lists_without_end_are_refused_before_they_fill_the_memory() {
    let text = String::from_utf8(written(&training())).unwrap();
    let shape = format!("\"shape\":[{}1", "1,".repeat(MAX_OF_ONE));
    let long = text.replacen("\"shape\":[1024", &shape, 1);
    assert_ne!(long, text);
    assert!(error(long.as_bytes()).contains("a list of more than 65536"));
    let deep = text.replacen(
        "\"shape\":[",
        &format!("\"shape\":{}", "[".repeat(100_000)),
        1,
    );
    assert!(error(deep.as_bytes()).contains("damaged"));
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    (
        (any::<u64>(), ".{0,12}", any::<bool>(), any::<u16>()),
        (
            proptest::collection::vec(any::<u64>(), 0..4),
            proptest::option::of(".{0,8}"),
            proptest::option::of(0..3_usize),
            any::<u64>(),
        ),
    )
        .prop_map(
            |((object, name, flag, dtype), (shape, word, storage, offset))| {
                let word = word.map(|word| word.as_str().into());
                Tensor {
                    object,
                    names: vec![Name {
                        text: name.into(),
                        inferred: flag.then_some(Name::RULES[0]),
                    }],
                    strides: shape.clone().into(),
                    shape: Some(shape.into()),
                    dtype: DType(dtype),
                    storage,
                    offset,
                    requires_grad: flag,
                    grad_fn: word.clone(),
                    saved_by: word.clone(),
                    module: word.clone(),
                    class: word,
                    gradient_of: storage.into_iter().collect(),
                    ..Tensor::default()
                }
            },
        )
}

proptest! {
    #[test]
    fn any_tensors_are_read_as_they_were_written(
        tensors in proptest::collection::vec(any_tensor(), 3..6),
        pause in proptest::option::of(0..3_600_000_000_000_u64),
        data in any::<u64>(),
    ) {
        let mut snapshot = training();
        snapshot.tensors = tensors;
        snapshot.storages[1].data = Address(data);
        snapshot.moment = TimeNs(data);
        snapshot.consistency = match pause {
            Some(pause) => Consistency::Paused { pause: Duration::from_nanos(pause), retries: 3 },
            None => Consistency::Running,
        };
        prop_assert_eq!(read_tensors(&*written(&snapshot)).unwrap(), snapshot);
    }

    #[test]
    fn no_damage_makes_it_fail_badly(places in proptest::collection::vec((0..20_000_usize, any::<u8>()), 1..8)) {
        let mut text = written(&training());
        for (place, byte) in places {
            let place = place % text.len();
            text[place] = byte;
        }
        let _ = read_tensors(&*text);
    }
}

use super::*;

/// A row: name, bytes, parts of the bytes, callers.
type Line = (&'static str, u64, [u64; 2], &'static [&'static str]);

fn line_columns() -> [Column<Line>; 8] {
    columns![|line: Line|
        data("device") => { let _ = line; crate::event::DeviceIndex(0) },
        number("live", "LIVE") => Cell::Bytes(line.1),
        number("input", "INPUT").priority(2).part(Summand::Named) => Cell::Bytes(line.2[0]),
        number("epoch", "EPOCH").priority(1) => { let _ = line; Cell::Unknown },
        figure("OTHER").part(Summand::Rest) => Cell::Bytes(line.2[1]),
        text("name", "LINE") => line.0,
        trail() => Cell::List(line.3.iter().map(|text| (*text).into()).collect()),
        json("callers") => match line.3 {
            [] => Cell::Unknown,
            callers => Cell::List(callers.iter().map(|text| (*text).into()).collect()),
        },
    ]
}

fn table() -> Table<Line> {
    let mut table = Table::new(line_columns());
    let callers = &["<- train.py:3", "<- main.py:1"];
    table.push(
        Output::All,
        ("model.py:7 forward", 4096, [1024, 3072], callers),
    );
    table.push(Output::Flat, ("(unaccounted)", 512, [0, 512], &[]));
    table.push(Output::Text, ("(total)", 4608, [1024, 3584], &[]));
    table
}

fn text(width: usize) -> (String, Vec<&'static str>) {
    let mut page = Page::new(width, Colour::Plain);
    let dropped = page.table(&table()).dropped;
    (page.into_text(), dropped)
}

#[test]
fn text_has_aligned_columns_and_the_callers_that_fit() {
    let expected = "    LIVE     INPUT     OTHER  LINE\n\
                    4.00 KiB  1.00 KiB  3.00 KiB  model.py:7 forward  <- train.py:3\n   \
                    512 B       0 B     512 B  (unaccounted)\n\
                    4.50 KiB  1.00 KiB  3.50 KiB  (total)\n";
    assert_eq!(text(70), (expected.to_owned(), vec![]));
}

#[test]
fn a_dropped_summand_counts_in_the_rest() {
    let expected = "    LIVE     OTHER  LINE\n\
                    4.00 KiB  4.00 KiB  model.py:7 forward\n   \
                    512 B     512 B  (unaccounted)\n\
                    4.50 KiB  4.50 KiB  (total)\n";
    assert_eq!(text(40), (expected.to_owned(), vec!["INPUT"]));
}

#[test]
fn csv_and_json_have_the_keys_of_the_columns() {
    let mut out = Vec::new();
    let table = table();
    let mut csv = CsvWriter::new(&table.columns, &mut out).unwrap();
    table.data_rows().for_each(|row| csv.row(row).unwrap());
    drop(csv);
    for row in table.data_rows() {
        json_object(&table.columns, row, &mut out).unwrap();
        out.push(b'\n');
    }
    let expected = r#"device,live,input,epoch,name
0,4096,1024,,model.py:7 forward
0,512,0,,(unaccounted)
{"device":0,"live":4096,"input":1024,"epoch":null,"name":"model.py:7 forward","callers":["<- train.py:3","<- main.py:1"]}
{"device":0,"live":512,"input":0,"epoch":null,"name":"(unaccounted)"}
"#;
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    let document = serde_json::to_value(Cell::from(table)).unwrap();
    assert_eq!(document.as_array().unwrap().len(), 1);
}

#[test]
fn a_text_of_limited_width_leaves_room_for_the_last_column() {
    let columns = columns![|row: (String, &'static str)|
        label("SHAPE").width(10, 40) => &row.0,
        label("NAME").width(8, usize::MAX).cut(Cut::Middle) => row.1,
    ];
    let mut table = Table::new(columns);
    table.push(Output::All, ("x".repeat(60), "encoder.layers.0.weight"));
    table.push(Output::Remark, ("(60 more)".to_owned(), ""));
    let mut page = Page::new(30, Colour::Ansi);
    page.table(&table);
    let x = "x".repeat(19);
    let expected = format!(
        "\x1b[1mSHAPE                 NAME\x1b[0m\n{x}…  en…eight\n\x1b[2m(60 more)\x1b[0m\n"
    );
    assert_eq!(page.into_text(), expected);
}

#[test]
fn a_legend_of_many_sentences_is_one_paragraph() {
    let legend = |sentences: &[&str]| {
        let mut page = Page::new(40, Colour::Plain);
        page.legend(sentences);
        page.into_text()
    };
    assert_eq!(legend(&["One.", "Two."]), "One.\nTwo.\n");
    let sentence = "A sentence of 24 letters.";
    let text = legend(&[sentence; 4]);
    assert_eq!(text.lines().count(), 3);
    assert_eq!(text.replace('\n', " ").trim(), [sentence; 4].join(" "));
}

#[test]
#[should_panic(expected = "a long legend")]
fn a_legend_has_at_most_three_lines() {
    Page::new(200, Colour::Plain).legend(&["word ".repeat(80)]);
}

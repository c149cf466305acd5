//! Line width of the generated Markdown pages.

/// Maximum width of a line of prose, in characters.
const WIDTH: usize = 120;

/// Breaks lines of prose wider than 120 characters. Continuations of a list item are indented.
/// Table rows and headings stay whole.
pub fn wrapped(page: &str) -> String {
    page.split('\n')
        .map(wrapped_line)
        .collect::<Vec<_>>()
        .join("\n")
}

fn wrapped_line(line: &str) -> String {
    if line.chars().count() <= WIDTH || line.starts_with(['|', '#']) {
        return line.to_owned();
    }
    let mut words = line.split(' ');
    let mut text = words.next().unwrap_or_default().to_owned();
    let indent = match is_marker(&text) {
        true => text.chars().count() + 1,
        false => 0,
    };
    let mut width = text.chars().count();
    for word in words {
        let added = word.chars().count() + 1;
        // A marker at the start of a line would begin a list.
        if width + added > WIDTH && !is_marker(word) {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            width = indent + added - 1;
        } else {
            text.push(' ');
            width += added;
        }
        text.push_str(word);
    }
    text
}

/// True for a word that begins a list item, heading or table at the start of a line.
fn is_marker(word: &str) -> bool {
    let number = word.strip_suffix(['.', ')']).unwrap_or_default();
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    is_number || matches!(word, "*" | "-" | "+" | "|" | ">") || word.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_broken_between_words() {
        let page = wrapped(&format!("short\n{}end\n", "word ".repeat(30)));
        let lines: Vec<&str> = page.split('\n').collect();
        assert_eq!(lines[0], "short");
        assert_eq!(lines[1].len(), 119);
        assert_eq!(lines[2], "word word word word word word end");
        assert_eq!(lines[3..], [""]);
    }

    #[test]
    fn continuations_of_list_items_are_indented() {
        let page = wrapped(&format!("10. {}", "– ".repeat(70)));
        let continuation = page.split('\n').nth(1).expect("two lines");
        assert!(continuation.starts_with("    –"), "{page}");
    }

    #[test]
    fn no_line_begins_with_a_marker() {
        let page = wrapped(&format!("{} 5. end", "a".repeat(119)));
        assert!(page.ends_with("a 5.\nend"), "{page}");
    }

    #[test]
    fn rows_and_headings_stay_whole() {
        for line in ["| ", "## "].map(|start| start.to_owned() + &"cell ".repeat(40)) {
            assert_eq!(wrapped(&line), line);
        }
    }
}

//! Texts in markup.

use std::borrow::Cow;

/// Escapes a text for markup and for attributes in quotes.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_target_are_no_markup() {
        let text = "<img src=x onerror=\"alert('1')\"> & more";
        assert_eq!(
            escaped(text),
            "&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt; &amp; more"
        );
        assert!(matches!(escaped("train.py:31"), Cow::Borrowed(_)));
    }
}

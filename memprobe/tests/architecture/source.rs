//! Paths, `unsafe` and macros that a Rust file uses outside its tests.

use std::path::Path;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A used name and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub line: usize,
    pub name: String,
}

impl Finding {
    /// True if the name is one of `patterns` or lies below one; `*::X` is an `X` anywhere in it.
    pub fn matches_any(&self, patterns: &[&str]) -> bool {
        patterns
            .iter()
            .any(|pattern| match pattern.strip_prefix("*::") {
                Some(anywhere) => self.name.split("::").any(|segment| segment == anywhere),
                None => {
                    let rest = self.name.strip_prefix(pattern);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
                }
            })
    }
}

/// Uses in a file outside `#[cfg(test)]`.
#[derive(Debug, Default)]
pub struct Source {
    /// Path of the module being visited, starting with `crate`.
    module: Vec<String>,
    paths: Vec<Finding>,
    unsafe_code: Vec<Finding>,
    macros: Vec<Finding>,
}

impl Source {
    /// Parses a file. `within` is its path below `src`, needed to resolve `super`. A file that is a
    /// test module by name yields nothing.
    pub fn parse(within: &Path, code: &str) -> syn::Result<Self> {
        let mut source = Self {
            module: module_of(within),
            ..Self::default()
        };
        let file = syn::parse_file(code)?;
        if !is_for_tests(within) && !file.attrs.iter().any(is_cfg_test) {
            source.visit_file(&file);
        }
        Ok(source)
    }

    /// Returns the used paths that match one of `patterns`.
    pub fn names_matching(&self, patterns: &[&str]) -> Vec<Finding> {
        self.paths
            .iter()
            .filter(|path| path.matches_any(patterns))
            .cloned()
            .collect()
    }

    pub fn unsafe_code(&self) -> Vec<Finding> {
        self.unsafe_code.clone()
    }

    /// Returns the macro calls with one of these names.
    pub fn macros_named(&self, names: &[&str]) -> Vec<Finding> {
        self.macros
            .iter()
            .filter(|found| names.contains(&found.name.as_str()))
            .cloned()
            .collect()
    }

    fn add_path(&mut self, segments: &[String], span: Span) {
        let name = self.resolved(segments).join("::");
        self.paths.push(Finding {
            line: span.start().line,
            name,
        });
    }

    fn add_unsafe(&mut self, span: Span) {
        self.unsafe_code.push(Finding {
            line: span.start().line,
            name: "unsafe".to_owned(),
        });
    }

    /// Returns `segments` with leading `self` and `super` resolved to modules.
    fn resolved(&self, segments: &[String]) -> Vec<String> {
        let mut module = self.module.clone();
        let mut rest = segments;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "self" => {}
                "super" => _ = module.pop(),
                _ if rest.len() == segments.len() => return segments.to_vec(),
                _ => break,
            }
            rest = others;
        }
        module.extend_from_slice(rest);
        module
    }

    fn add_use(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_use(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, before);
                }
            }
            syn::UseTree::Name(name) => self.add_used(before, &name.ident),
            syn::UseTree::Rename(rename) => self.add_used(before, &rename.ident),
            syn::UseTree::Glob(glob) => {
                self.add_path(before, glob.star_token.spans[0]);
            }
        }
    }

    fn add_used(&mut self, before: &[String], name: &syn::Ident) {
        let mut segments = before.to_vec();
        if name != "self" {
            segments.push(name.to_string());
        }
        self.add_path(&segments, name.span());
    }

    /// Adds the paths in a macro's arguments, which syn leaves unparsed.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut segments: Vec<String> = Vec::new();
        let mut start = Span::call_site();
        let mut colons = 0;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) => {
                    if ident == "unsafe" {
                        self.add_unsafe(ident.span());
                    }
                    let calls = matches!(tokens.peek(), Some(TokenTree::Punct(mark)) if mark.as_char() == '!');
                    if calls {
                        self.macros.push(Finding {
                            line: ident.span().start().line,
                            name: ident.to_string(),
                        });
                    }
                    if colons != 2 {
                        self.end_of_path(&mut segments, start);
                        start = ident.span();
                    }
                    segments.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_of_path(&mut segments, start);
                    if group.delimiter() != Delimiter::None || !group.stream().is_empty() {
                        self.add_tokens(group.stream());
                    }
                    colons = 0;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.end_of_path(&mut segments, start);
                    colons = 0;
                }
            }
        }
        self.end_of_path(&mut segments, start);
    }

    fn end_of_path(&mut self, segments: &mut Vec<String>, start: Span) {
        if !segments.is_empty() {
            self.add_path(segments, start);
            segments.clear();
        }
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes(item).iter().any(is_cfg_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        if let Some(first) = path.segments.first() {
            self.add_path(&segments, first.ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(name) = call.path.segments.last() {
            let line = name.ident.span().start().line;
            self.macros.push(Finding {
                line,
                name: name.ident.to_string(),
            });
        }
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.add_unsafe(block.unsafe_token.span);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let Some(token) = signature.unsafety {
            self.add_unsafe(token.span);
        }
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = item.unsafety {
            self.add_unsafe(token.span);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        self.add_unsafe(item.abi.extern_token.span);
        visit::visit_item_foreign_mod(self, item);
    }
}

/// Returns the module of a file: `crate::tui::view` for `tui/view.rs`.
fn module_of(within: &Path) -> Vec<String> {
    let mut module = vec!["crate".to_owned()];
    let stem = within.with_extension("");
    module.extend(stem.iter().map(|part| part.to_string_lossy().into_owned()));
    if matches!(
        module.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        module.pop();
    }
    module
}

/// Stems of files that their parent declares under `#[cfg(test)]`: tests and shared samples.
pub const TEST_FILES: [&str; 4] = ["tests", "samples", "screens", "pictures"];

/// True if a file below a folder of `src` is one of [`TEST_FILES`].
fn is_for_tests(within: &Path) -> bool {
    let stem = within.file_stem().and_then(|stem| stem.to_str());
    within.components().count() > 1 && stem.is_some_and(|stem| TEST_FILES.contains(&stem))
}

fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    list.path.is_ident("cfg") && list.tokens.to_string() == "test"
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: &str) -> Source {
        Source::parse(Path::new("model/blocks.rs"), code).unwrap()
    }

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_forbidden_import_is_found_however_it_is_written() {
        for code in [
            "use std::fs;",
            "use std::fs::File;",
            "use std::{collections::HashMap, fs};",
            "use std::fs::{self, File as Opened};",
            "use std::fs::*;",
            "fn f() { std::fs::read(\"x\"); }",
            "fn f(_: std::fs::File) {}",
            "fn f() { println!(\"{:?}\", std::fs::read(\"x\")); }",
            "fn f() { g![a, (std::fs::read(\"x\"))]; }",
        ] {
            assert_eq!(
                lines(&read(code).names_matching(&["std::fs"]))[..1],
                [1],
                "{code}"
            );
        }
    }

    #[test]
    fn a_name_that_contains_a_forbidden_one_is_accepted() {
        let code = "//! std::fs\nuse std::fss;\nfn fs() { let s = \"std::fs\"; /* std::fs */ }";
        assert_eq!(read(code).names_matching(&["std::fs"]), []);
    }

    #[test]
    fn a_name_anywhere_is_found_behind_any_import() {
        let code = "use std::time;\nfn f() { time::Instant::now(); }";
        assert_eq!(lines(&read(code).names_matching(&["*::Instant"])), [2]);
    }

    #[test]
    fn relative_paths_are_resolved_to_their_module() {
        let tui = ["crate::tui"];
        assert_eq!(
            lines(&read("use super::super::tui::State;").names_matching(&tui)),
            [1]
        );
        assert_eq!(
            lines(&read("mod a { use super::super::super::tui; }").names_matching(&tui)),
            [1]
        );
        assert_eq!(read("use super::tui::State;").names_matching(&tui), []);
        assert_eq!(
            lines(&read("use super::ledger;").names_matching(&["crate::model"])),
            [1]
        );
    }

    #[test]
    fn tests_may_touch_what_they_like() {
        let code = "#[cfg(test)]\nmod tests { use std::fs; fn f() { todo!(); } }\n\
                    #[cfg(not(test))]\nmod other { use std::fs; }";
        assert_eq!(lines(&read(code).names_matching(&["std::fs"])), [4]);
        assert_eq!(read(code).macros_named(&["todo"]), []);
        let tests = Source::parse(Path::new("model/tests.rs"), "use std::fs;").unwrap();
        assert_eq!(tests.names_matching(&["std::fs"]), []);
    }

    #[test]
    fn every_form_of_unsafe_is_found() {
        for code in [
            "fn f() { unsafe { g() } }",
            "unsafe fn f() {}",
            "unsafe impl Send for X {}",
            "unsafe extern \"C\" { fn f(); }",
            "fn f() { g!(unsafe { h() }); }",
        ] {
            assert_eq!(lines(&read(code).unsafe_code()), [1], "{code}");
        }
        assert_eq!(
            read("// unsafe\nfn f() { let s = \"unsafe\"; }").unsafe_code(),
            []
        );
    }

    #[test]
    fn unfinished_code_is_found_in_macros_too() {
        let code = "fn f() { todo!() }\nfn g() { h!(unimplemented!()) }\nfn todo() {}";
        assert_eq!(
            lines(&read(code).macros_named(&["todo", "unimplemented"])),
            [1, 2]
        );
    }
}

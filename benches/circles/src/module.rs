//! The modules, definitions, imports and paths in the code of a file.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A path as written, such as `super::Table`.
pub(crate) type Path = Vec<String>;

/// A module in a file.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Items that the module defines.
    pub(crate) items: BTreeSet<String>,
    /// Modules with a file of their own, with the value of `#[path]`.
    pub(crate) files: BTreeMap<String, Option<String>>,
    /// Modules in the same file.
    pub(crate) inner: BTreeMap<String, Module>,
    /// Imported names, with their path.
    pub(crate) imports: BTreeMap<String, Path>,
    /// Modules of which all names are imported.
    pub(crate) globs: Vec<Path>,
    /// Paths in other code. A name alone is a path, too.
    pub(crate) paths: BTreeSet<Path>,
}

const KEYWORDS: [&str; 9] =
    ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

impl Module {
    /// Reads code, without what is only built for tests.
    pub(crate) fn read(code: TokenStream) -> Module {
        let mut module = Module::default();
        module.add(code);
        module
    }

    fn add(&mut self, code: TokenStream) {
        let tokens: Vec<_> = code.into_iter().collect();
        let mut path_attribute = None;
        let mut at = 0;
        while at < tokens.len() {
            if let Some(attribute) = attribute(&tokens[at..]) {
                at += 2;
                if is_for_tests(attribute) {
                    at += length_of_item(&tokens[at..]);
                } else {
                    path_attribute = path_value(attribute).or(path_attribute);
                }
                continue;
            }
            at += match &tokens[at] {
                TokenTree::Group(group) => {
                    self.add(group.stream());
                    1
                }
                // A lifetime, such as `'static`.
                token if is(token, '\'') => 2,
                TokenTree::Ident(word) => match (word.to_string().as_str(), tokens.get(at + 1)) {
                    ("use", Some(_)) => {
                        let end = at + length_of_item(&tokens[at..]);
                        self.import(&tokens[at + 1..end], &mut Vec::new());
                        end - at
                    }
                    ("mod", Some(TokenTree::Ident(name))) => {
                        let name = name.to_string();
                        match tokens.get(at + 2) {
                            Some(TokenTree::Group(group)) => {
                                drop(self.inner.insert(name, Module::read(group.stream())));
                            }
                            _ => drop(self.files.insert(name, path_attribute.take())),
                        }
                        3
                    }
                    (keyword, Some(next)) if KEYWORDS.contains(&keyword) => {
                        let name = if is(next, '!') { tokens.get(at + 2) } else { Some(next) };
                        match name {
                            // `const fn` and `static mut` come before the name.
                            Some(TokenTree::Ident(name)) if *name != "fn" && *name != "mut" => {
                                self.items.insert(name.to_string());
                                2
                            }
                            _ => 1,
                        }
                    }
                    _ => self.path(&tokens[at..]),
                },
                _ => 1,
            };
        }
    }

    /// Reads the tree of an import, after the path in `before`.
    fn import(&mut self, tree: &[TokenTree], before: &mut Path) {
        let length = before.len();
        let mut alias = None;
        for (at, token) in tree.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if *word == "as" => {
                    alias = tree.get(at + 1).map(ToString::to_string);
                    break;
                }
                TokenTree::Ident(word) => before.push(word.to_string()),
                TokenTree::Group(group) => {
                    let trees: Vec<_> = group.stream().into_iter().collect();
                    trees.split(|token| is(token, ',')).for_each(|tree| self.import(tree, before));
                    before.truncate(length);
                    return;
                }
                token if is(token, '*') => {
                    self.globs.push(before.clone());
                    before.truncate(length);
                    return;
                }
                _ => {}
            }
        }
        if before.len() > length {
            // `self` in a group means the module before it.
            if length > 0 && before.last().is_some_and(|last| last == "self") {
                before.pop();
            }
            // `as _` imports no name, but is an import.
            let name = alias.filter(|name| name != "_").or(before.last().cloned());
            drop(self.imports.insert(name.unwrap_or_default(), before.clone()));
        }
        before.truncate(length);
    }

    /// Reads a path that begins with a name. Returns its number of tokens.
    fn path(&mut self, tokens: &[TokenTree]) -> usize {
        let mut path = vec![tokens[0].to_string()];
        let mut at = 1;
        while let [a, b, TokenTree::Ident(next), ..] = &tokens[at..] {
            if !is(a, ':') || !is(b, ':') {
                break;
            }
            path.push(next.to_string());
            at += 3;
        }
        self.paths.insert(path);
        at
    }
}

fn is(token: &TokenTree, char: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == char)
}

/// Returns the attribute with which tokens begin.
fn attribute(tokens: &[TokenTree]) -> Option<&Group> {
    match tokens {
        [hash, TokenTree::Group(group), ..]
            if is(hash, '#') && group.delimiter() == Delimiter::Bracket =>
        {
            Some(group)
        }
        _ => None,
    }
}

/// Returns whether an attribute is `cfg(test)`, or `cfg(all(..))` with `test`.
fn is_for_tests(attribute: &Group) -> bool {
    fn requires_test(condition: TokenStream) -> bool {
        let condition: Vec<_> = condition.into_iter().collect();
        condition.split(|token| is(token, ',')).any(|condition| match condition {
            [TokenTree::Ident(word)] => *word == "test",
            [TokenTree::Ident(word), TokenTree::Group(all)] => {
                *word == "all" && requires_test(all.stream())
            }
            _ => false,
        })
    }
    let tokens: Vec<_> = attribute.stream().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(word), TokenTree::Group(condition)] => {
            *word == "cfg" && requires_test(condition.stream())
        }
        _ => false,
    }
}

/// Returns the value of an attribute `path = ".."`.
fn path_value(attribute: &Group) -> Option<String> {
    let tokens: Vec<_> = attribute.stream().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(word), _, TokenTree::Literal(value)] if *word == "path" => {
            Some(value.to_string().trim_matches('"').to_owned())
        }
        _ => None,
    }
}

/// Returns the number of tokens of an item, statement or field, with its end.
fn length_of_item(tokens: &[TokenTree]) -> usize {
    let is_import = tokens.iter().take(3).any(|token| token.to_string() == "use");
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !is_import,
        token => is(token, ';') || is(token, ','),
    };
    tokens.iter().position(ends).map_or(tokens.len(), |at| at + 1)
}

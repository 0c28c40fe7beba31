//! Paths that handlers answer for.

use std::fmt;
use std::sync::Arc;

use crate::handler::Handler;
use crate::path;

/// Handlers by path, encoded as [`path::canonical`] has it.
#[derive(Clone, Default)]
pub(crate) struct Routes(Vec<Entry>);

/// A path and who answers for it.
type Entry = (Box<[u8]>, Arc<dyn Handler>);

/// Which of the routes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route(usize);

impl Routes {
    /// Adds a handler; a later one for the same path takes the place of an earlier one.
    pub(crate) fn add(&mut self, path: &str, handler: Arc<dyn Handler>) {
        let mut canonical = if path.starts_with('/') { Vec::new() } else { vec![b'/'] };
        path::encode(path.as_bytes(), &mut canonical);
        let path = canonical.into_boxed_slice();
        self.0.retain(|(other, _)| *other != path);
        self.0.push((path, handler));
        // The longest come first.
        self.0.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    }

    /// The route of a target's canonical path.
    pub(crate) fn find(&self, path: &[u8]) -> Option<Route> {
        let answers =
            |route: &[u8]| path == route || route.ends_with(b"/") && path.starts_with(route);
        self.0.iter().position(|(route, _)| answers(route)).map(Route)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The handler of a route.
    pub(crate) fn handler(&self, route: Route) -> &Arc<dyn Handler> {
        &self.0[route.0].1
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.0.iter().map(|(path, _)| String::from_utf8_lossy(path));
        f.debug_list().entries(paths).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, Response};

    #[test]
    fn the_longest_path_counts_and_begins_with_a_slash() {
        let mut routes = Routes::default();
        for path in ["/", "a", "/a/", "/a/b"] {
            routes.add(path, Arc::new(|_: Request| Response::default()));
        }
        let found = |path: &str| {
            let route = routes.find(path.as_bytes())?;
            std::str::from_utf8(&routes.0[route.0].0).ok()
        };
        assert_eq!(found("/a"), Some("/a"));
        assert_eq!(found("/ab"), Some("/"));
        assert_eq!(found("/a/"), Some("/a/"));
        assert_eq!(found("/a/c"), Some("/a/"));
        assert_eq!(found("/a/b"), Some("/a/b"));
        assert_eq!(found("/a/bc"), Some("/a/"));
        assert_eq!(found("*"), None);
    }
}

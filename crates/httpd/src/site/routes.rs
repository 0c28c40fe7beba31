//! Routes: paths with handlers.

use std::fmt;
use std::sync::Arc;

use crate::message::path;
use crate::site::handler::Handler;

/// Handlers by path, in the form of [`path::canonical`].
#[derive(Clone, Default)]
pub(crate) struct Routes(Vec<Entry>);

type Entry = (Box<[u8]>, Arc<dyn Handler>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Route(usize);

impl Routes {
    /// Adds a handler, replacing one for the same path.
    pub(crate) fn add(&mut self, path: &str, handler: Arc<dyn Handler>) {
        let mut canonical = if path.starts_with('/') { Vec::new() } else { vec![b'/'] };
        path::encode(path.as_bytes(), &mut canonical);
        let path = canonical.into_boxed_slice();
        self.0.retain(|(other, _)| *other != path);
        self.0.push((path, handler));
        // The longest match wins.
        self.0.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    }

    pub(crate) fn find(&self, path: &[u8]) -> Option<Route> {
        let matches =
            |route: &[u8]| path == route || route.ends_with(b"/") && path.starts_with(route);
        self.0.iter().position(|(route, _)| matches(route)).map(Route)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

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
    fn longest_matching_route_wins_and_leading_slash_is_added() {
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

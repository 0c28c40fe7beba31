//! Routes: paths with handlers.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use http::Method;

use crate::message::path;
use crate::site::guard::Guarded;
use crate::site::handler::Handler;
use crate::site::params::PathParams;

/// Handlers by path.
#[derive(Clone, Default)]
pub(crate) struct Routes(Vec<RouteEntry>);

#[derive(Clone)]
struct RouteEntry {
    path: RoutePath,
    handler: Guarded<Arc<dyn Handler>>,
    sheds_if_late: bool,
    wants_client_info: bool,
    constant: ConstantFor,
}

/// The requests without a body to which a route gives the same response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConstantFor {
    None,
    Gets,
    All,
}

impl RouteEntry {
    fn new(path: RoutePath, handler: Arc<dyn Handler>) -> Self {
        let (sheds_if_late, wants_client_info) =
            (handler.sheds_if_late(), handler.wants_client_info());
        let constant = if handler.constant().is_some() {
            ConstantFor::All
        } else if handler.constant_for(&Method::GET).is_some() {
            ConstantFor::Gets
        } else {
            ConstantFor::None
        };
        let handler = Guarded::new(handler);
        RouteEntry { path, handler, sheds_if_late, wants_client_info, constant }
    }
}

/// The path of a route.
#[derive(Clone, Debug)]
enum RoutePath {
    /// In the form of [`path::canonical`].
    Literal(Box<[u8]>),
    /// The segments after the slashes.
    Pattern(Box<[Segment]>),
}

#[derive(Clone, Debug)]
enum Segment {
    Literal(Box<[u8]>),
    /// Any segment that is not empty, by this name.
    Parameter(Arc<str>),
}

/// The route of a request.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) index: usize,
    pub(crate) sheds_if_late: bool,
    pub(crate) wants_client_info: bool,
    pub(crate) constant: ConstantFor,
    /// The parameters in the path, if the route has any.
    pub(crate) params: Option<PathParams>,
    /// The canonical path, if a handler could take the rest of the request's path for one that leaves the route.
    pub(crate) canonical: Option<Vec<u8>>,
}

/// Returns whether a parameter can have this name.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

impl RoutePath {
    const NO_PARAMETER: &str = "a parameter is a whole segment with a name of letters, digits, `_` and `-`, such as \
                                /users/{id}; for all paths below one, end the route in a slash";

    const FOREIGN: &str = "a parameter is written as {id}, all paths below one as a route that ends in a slash, and a \
                           query is no part of a route";

    const TWICE: &str = "the path has a route already; put the handlers of its methods together, as in \
                         get(list).post(create)";

    /// # Errors
    /// A segment has braces and is no parameter, or has the syntax of other routers.
    fn new(path: &str) -> Result<Self, &'static str> {
        let path = path.strip_prefix('/').unwrap_or(path);
        if path.contains('?') || path.split('/').any(|segment| segment.starts_with([':', '*'])) {
            return Err(Self::FOREIGN);
        }
        let encoded = |text: &str, mut out: Vec<u8>| {
            path::encode(text.as_bytes(), &mut out);
            out.into_boxed_slice()
        };
        let name = |segment: &str| {
            let name = segment.strip_prefix('{')?.strip_suffix('}')?;
            Some(Segment::Parameter(name.into()))
        };
        if path.split('/').all(|segment| name(segment).is_none()) {
            return match path.contains(['{', '}']) {
                true => Err(Self::NO_PARAMETER),
                false => Ok(RoutePath::Literal(encoded(path, vec![b'/']))),
            };
        }
        let is_wrong = |segment: &str| match name(segment) {
            Some(Segment::Parameter(name)) => !is_name(&name),
            _ => segment.contains(['{', '}']),
        };
        if path.split('/').any(is_wrong) {
            return Err(Self::NO_PARAMETER);
        }
        let segment =
            |text| name(text).unwrap_or_else(|| Segment::Literal(encoded(text, Vec::new())));
        Ok(RoutePath::Pattern(path.split('/').map(segment).collect()))
    }

    /// Returns whether the paths match the same requests.
    fn equals(&self, other: &RoutePath) -> bool {
        match (self, other) {
            (RoutePath::Literal(a), RoutePath::Literal(b)) => a == b,
            (RoutePath::Pattern(a), RoutePath::Pattern(b)) => {
                let equal = |pair: (&Segment, &Segment)| match pair {
                    (Segment::Literal(a), Segment::Literal(b)) => a == b,
                    (Segment::Parameter(_), Segment::Parameter(_)) => true,
                    _ => false,
                };
                a.len() == b.len() && a.iter().zip(b).all(equal)
            }
            _ => false,
        }
    }

    /// Returns the order in which routes are tried: the most specific first. The literal that equals the path
    /// comes before all.
    fn order(&self) -> impl Ord + use<> {
        let (is_prefix, parameters, len) = match self {
            RoutePath::Literal(path) => (path.ends_with(b"/"), 0, path.len()),
            RoutePath::Pattern(segments) => {
                let is_parameter = |s: &&Segment| matches!(s, Segment::Parameter(_));
                (false, segments.iter().filter(is_parameter).count(), segments.len())
            }
        };
        (is_prefix, parameters, Reverse(len))
    }

    #[inline]
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            RoutePath::Literal(route) => path::is_at_or_below(path, route),
            RoutePath::Pattern(segments) => {
                let mut parts = path.split(|b| *b == b'/').skip(1);
                let all = segments.iter().all(|segment| match (segment, parts.next()) {
                    (Segment::Literal(text), Some(part)) => **text == *part,
                    (Segment::Parameter(_), Some(part)) => path::decode(part)
                        .is_ok_and(|part| !part.is_empty() && std::str::from_utf8(&part).is_ok()),
                    (_, None) => false,
                });
                all && parts.next().is_none()
            }
        }
    }

    fn params(&self, path: &[u8]) -> Option<PathParams> {
        let RoutePath::Pattern(segments) = self else { return None };
        let parts = path.split(|b| *b == b'/').skip(1);
        let params = segments.iter().zip(parts).filter_map(|(segment, part)| {
            let Segment::Parameter(name) = segment else { return None };
            let value = String::from_utf8(path::decode(part).ok()?).ok()?;
            Some((Arc::clone(name), value))
        });
        Some(PathParams(params.collect()))
    }
}

impl Routes {
    /// Adds a handler.
    ///
    /// # Errors
    /// The reason why the path is that of no route, or that it has one already.
    pub(crate) fn add(
        &mut self,
        path: &str,
        handler: Arc<dyn Handler>,
    ) -> Result<(), &'static str> {
        let path = RoutePath::new(path)?;
        if self.0.iter().any(|entry| entry.path.equals(&path)) {
            return Err(RoutePath::TWICE);
        }
        self.0.push(RouteEntry::new(path, handler));
        self.0.sort_by_key(|entry| entry.path.order());
        Ok(())
    }

    /// Returns the route of a canonical path.
    pub(crate) fn find(&self, path: &[u8]) -> Option<Route> {
        if let Some(route) = self.find_exact(path) {
            return Some(route);
        }
        let index = self.0.iter().position(|entry| entry.path.matches(path))?;
        Some(Route { params: self.0[index].path.params(path), ..self.route(index) })
    }

    /// Returns the route of a canonical path, which arrived as `path`.
    pub(crate) fn find_for(&self, name: &[u8], path: &[u8]) -> Option<Route> {
        let route = self.find(name)?;
        let differs = name != path
            && {
                let is_below = |prefix: &[u8]| path.starts_with(prefix);
                path::has_other_segments(path)
                    || matches!(&self.0[route.index].path, RoutePath::Literal(prefix) if !is_below(prefix))
            };
        Some(Route { canonical: differs.then(|| name.to_vec()), ..route })
    }

    /// Returns the route whose path is the target as it arrived: no other route is more specific.
    #[inline]
    pub(crate) fn find_exact(&self, target: &[u8]) -> Option<Route> {
        let is_exact = |entry: &RouteEntry| matches!(&entry.path, RoutePath::Literal(path) if **path == *target);
        self.0.iter().position(is_exact).map(|index| self.route(index))
    }

    fn route(&self, index: usize) -> Route {
        let RouteEntry { sheds_if_late, wants_client_info, constant, .. } = self.0[index];
        let (params, canonical) = (None, None);
        Route { index, sheds_if_late, wants_client_info, constant, params, canonical }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn handler(&self, route: &Route) -> &Arc<dyn Handler> {
        &self.0[route.index].handler
    }

    /// Replaces each handler.
    pub(crate) fn map(&mut self, change: impl Fn(Arc<dyn Handler>) -> Arc<dyn Handler>) {
        for entry in &mut self.0 {
            *entry = RouteEntry::new(entry.path.clone(), change(Arc::clone(&entry.handler)));
        }
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|entry| &entry.path)).finish()
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
            routes.add(path, Arc::new(|_: Request| Response::default())).unwrap();
        }
        let found = |path: &str| {
            let route = routes.find(path.as_bytes())?;
            let RoutePath::Literal(path) = &routes.0[route.index].path else { return None };
            std::str::from_utf8(path).ok()
        };
        assert_eq!(found("/a"), Some("/a"));
        assert_eq!(found("/ab"), Some("/"));
        assert_eq!(found("/a/"), Some("/a/"));
        assert_eq!(found("/a/c"), Some("/a/"));
        assert_eq!(found("/a/b"), Some("/a/b"));
        assert_eq!(found("/a/bc"), Some("/a/"));
        assert_eq!(found("*"), None);
    }

    #[test]
    fn pattern_won_over_the_literal_that_the_path_equals() {
        let mut routes = Routes::default();
        for path in ["/{x}/", "/a/"] {
            routes.add(path, Arc::new(|_: Request| Response::default())).unwrap();
        }
        let index = |route: Option<Route>| route.map(|route| route.index);
        assert_eq!(index(routes.find(b"/a/")), index(routes.find_exact(b"/a/")));
        assert!(routes.find(b"/a/").unwrap().params.is_none());
        assert_eq!(routes.find(b"/b/").unwrap().params.unwrap().get("x"), Some("b"));
    }

    #[test]
    fn most_specific_route_wins_and_parameters_are_decoded() {
        let mut routes = Routes::default();
        for path in ["/", "/a/{id}", "/a/new", "/a/{id}/b/{c}", "{x}", "/a/", "/a/%"] {
            routes.add(path, Arc::new(|_: Request| Response::default())).unwrap();
        }
        let found = |path: &str| {
            let route = routes.find(path.as_bytes()).unwrap();
            let values = route.params.as_ref().map(|params| {
                ["id", "c", "x"].into_iter().filter_map(|name| params.get(name)).collect::<Vec<_>>()
            });
            let RouteEntry { path, .. } = &routes.0[route.index];
            match (path, values) {
                (RoutePath::Pattern(_), Some(values)) => values.join(" "),
                (RoutePath::Literal(path), None) => String::from_utf8(path.to_vec()).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(found("/a/new"), "/a/new");
        assert_eq!(found("/a/12"), "12");
        assert_eq!(found("/a/x%20y"), "x y");
        assert_eq!(found("/a/1/b/2"), "1 2");
        assert_eq!(found("/a/1/b"), "/a/");
        assert_eq!(found("/a/"), "/a/");
        assert_eq!(found("/b"), "b");
        assert_eq!(found("/"), "/");
        assert_eq!(found("/a/%25"), "/a/%25");
        // Not UTF-8.
        assert_eq!(found("/a/%FF"), "/a/");
        assert_eq!(found("/%FF"), "/");
    }

    #[test]
    fn parameter_that_is_no_whole_segment_was_a_literal() {
        let mut routes = Routes::default();
        let mut add = |path: &str| routes.add(path, Arc::new(|_: Request| Response::default()));
        for path in
            ["/a{x}", "/{x}b", "/{*rest}", "/{}", "/{x", "/a/{x}/{y", "/{x}/b{y}", "/{a{b}}", "}"]
        {
            assert_eq!(add(path), Err(RoutePath::NO_PARAMETER), "{path}");
        }
        for path in ["/{x}", "/{user_id}/b-1/{y-2}", "/a*:", "/a%"] {
            add(path).unwrap();
        }
    }

    #[test]
    fn second_route_of_a_path_replaced_the_first() {
        let mut routes = Routes::default();
        let mut add = |path: &str| routes.add(path, Arc::new(|_: Request| Response::default()));
        for path in ["/a", "/b/{x}", "/b/{x}/c", "/b/"] {
            add(path).unwrap();
        }
        for path in ["/a", "a", "/b/{x}", "/b/{y}", "/b/{y}/c", "/b/"] {
            assert_eq!(add(path), Err(RoutePath::TWICE), "{path}");
        }
        add("/b/a").unwrap();
    }

    #[test]
    fn route_in_the_syntax_of_other_routers_was_a_literal() {
        let mut routes = Routes::default();
        let mut add = |path: &str| routes.add(path, Arc::new(|_: Request| Response::default()));
        for path in ["/c/*", "/c/*rest", "/d/:id", ":id", "/q?x=1"] {
            assert_eq!(add(path), Err(RoutePath::FOREIGN), "{path}");
        }
    }
}

//! Handlers by method.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};

use crate::site::any_response::{AnyResponse, Response};
use crate::site::handler::{Answer, Handler};
use crate::site::head::Head;
use crate::site::into_handler::IntoHandler;
use crate::site::into_response::IntoResponse;

/// Handlers of one path by method; created by [`get`], [`post`], [`put`], [`patch`] and [`delete`].
///
/// The handler for GET also answers HEAD, without the body. Other methods get 405, and OPTIONS gets 204, both
/// with the field Allow.
///
/// ```
/// use evring_httpd::{Request, Server, get};
///
/// let list = |_: Request| "[]";
/// let create = async |request: Request| request.into_body();
/// let server = Server::builder().route("/items", get(list).post(create));
/// ```
#[derive(Default)]
#[must_use]
pub struct Methods(Vec<(Method, Arc<dyn Handler>)>);

macro_rules! methods {
    ($($name:ident $method:ident,)*) => {
        impl Methods {
            $(
                #[doc = concat!("Sets the handler for ", stringify!($method), ".")]
                pub fn $name<K>(self, handler: impl IntoHandler<K>) -> Self {
                    self.on(Method::$method, handler)
                }
            )*
        }

        $(
            #[doc = concat!("Creates [`Methods`] with a handler for ", stringify!($method), ".")]
            pub fn $name<K>(handler: impl IntoHandler<K>) -> Methods {
                Methods::default().$name(handler)
            }
        )*
    };
}

methods! {
    get GET,
    post POST,
    put PUT,
    patch PATCH,
    delete DELETE,
}

impl Methods {
    /// Sets the handler for `method`, replacing an earlier one.
    pub fn on<K>(mut self, method: Method, handler: impl IntoHandler<K>) -> Self {
        self.0.retain(|(other, _)| *other != method);
        self.0.push((method, Arc::new(handler.into_handler())));
        self
    }

    fn find(&self, method: &str) -> Option<&Arc<dyn Handler>> {
        let find = |method: &str| self.0.iter().find(|(other, _)| other.as_str() == method);
        let found = find(method).or_else(|| if method == "HEAD" { find("GET") } else { None });
        found.map(|(_, handler)| handler)
    }

    /// Answers a method without a handler.
    fn reject(&self, method: &Method) -> Response {
        let status = match *method {
            Method::OPTIONS => StatusCode::NO_CONTENT,
            _ => StatusCode::METHOD_NOT_ALLOWED,
        };
        let mut names: Vec<_> = self.0.iter().map(|(method, _)| method.as_str()).collect();
        if names.contains(&"GET") && !names.contains(&"HEAD") {
            names.push("HEAD");
        }
        if !names.contains(&"OPTIONS") {
            names.push("OPTIONS");
        }
        let mut response = status.into_response();
        if let Ok(allow) = HeaderValue::from_str(&names.join(", ")) {
            response.headers_mut().insert(ALLOW, allow);
        }
        response
    }
}

impl Handler for Methods {
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        match self.find(head.method.as_str()) {
            Some(handler) => Arc::clone(handler).handle(head),
            None => Answer::Respond(self.reject(&head.method)),
        }
    }

    fn handle_without_body(&self, head: Parts) -> ControlFlow<AnyResponse, Parts> {
        match self.find(head.method.as_str()) {
            Some(handler) => handler.handle_without_body(head),
            None => ControlFlow::Break(self.reject(&head.method).into()),
        }
    }

    fn handle_head(&self, head: &Head<'_>) -> Option<AnyResponse> {
        self.find(head.method())?.handle_head(head)
    }

    fn constant_for(&self, method: &Method) -> Option<(&'static str, Bytes)> {
        self.find(method.as_str())?.constant_for(method)
    }

    fn sheds_if_late(&self) -> bool {
        self.0.iter().any(|(_, handler)| handler.sheds_if_late())
    }

    fn wants_client_info(&self) -> bool {
        self.0.iter().any(|(_, handler)| handler.wants_client_info())
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(method, _)| method)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    #[test]
    fn allow_listed_methods_twice() {
        let handler = |_: Request| Response::default();
        let methods = Methods::default().on(Method::HEAD, handler).on(Method::OPTIONS, handler);
        let rejected = methods.get(handler).reject(&Method::POST);
        assert_eq!(rejected.headers()[ALLOW], "HEAD, OPTIONS, GET");
        assert_eq!(get(handler).reject(&Method::POST).headers()[ALLOW], "GET, HEAD, OPTIONS");
    }
}

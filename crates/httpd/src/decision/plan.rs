//! The response to a request for a representation that exists, and to one that has none.

use std::ops::Range;

use crate::decision::conditions::{PreconditionResult, Validators};
use crate::message::range::{self, RangeRequest};
use crate::message::request::{Expects, Method, RequestHead};
use crate::message::status::Status;

/// The response to a request for a representation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// 200 with all of it.
    Whole,
    /// 206 with one part, or several.
    Part(Range<u64>),
    Parts(Vec<Range<u64>>),
    /// 304.
    NotModified,
    /// 412.
    PreconditionFailed,
    /// 416.
    RangeNotSatisfiable,
}

impl Plan {
    /// Plans the response to a GET or HEAD for a representation of `len` bytes. Without validators,
    /// conditions and ranges are ignored.
    pub(crate) fn new(
        request: &RequestHead<'_>,
        validators: Option<&Validators>,
        len: u64,
    ) -> Self {
        let Some(validators) = validators.filter(|_| request.conditional) else {
            return Plan::Whole;
        };
        match validators.evaluate(request) {
            PreconditionResult::NotModified => return Plan::NotModified,
            PreconditionResult::Failed => return Plan::PreconditionFailed,
            PreconditionResult::Proceed => {}
        }
        let has_ranges = request.method == Method::Get && validators.has_ranges();
        let range = validators.range(request).filter(|_| has_ranges);
        match range.map_or(RangeRequest::Whole, |range| range::parse_range(range, len)) {
            RangeRequest::Whole => Plan::Whole,
            RangeRequest::NotSatisfiable => Plan::RangeNotSatisfiable,
            RangeRequest::One(part) => Plan::Part(part),
            RangeRequest::Several(parts) => Plan::Parts(parts),
        }
    }
}

/// Returns whether a request is a GET or HEAD without a body and expectations.
#[inline]
pub(crate) fn is_plain(request: &RequestHead<'_>) -> bool {
    matches!(request.method, Method::Get | Method::Head)
        && !request.has_body()
        && request.expects != Expects::Unknown
}

/// Returns whether a file may answer a request, which no handler does.
///
/// # Errors
/// 501 for an unknown method, 405 for another one that files do not have.
pub(crate) fn check_file_method(method: Method) -> Result<(), Status> {
    match method {
        Method::Unknown => Err(Status::NOT_IMPLEMENTED),
        Method::Known => Err(Status::METHOD),
        Method::Get | Method::Head | Method::Options => Ok(()),
    }
}

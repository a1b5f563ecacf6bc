// SPDX-License-Identifier: Apache-2.0
//! The errors that peers get.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use fide_controller_api::Code;
use fide_controller_api::client::STALE;
use fide_controller_api::failure::{Details, Failed, Failure};
use serde_json::json;

use crate::shell::{Refused, Reply};
use crate::tls::NotAdmitted;
use crate::upcalls::{Closed, UpcallError};

/// An error as it is sent.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub status: u16,
    pub code: Code,
    /// What was wrong, and how to correct it.
    pub message: String,
    /// More fields of the error.
    pub details: Box<Details>,
    pub retry_after_s: Option<u64>,
    /// Whether the connection is closed after it.
    pub close: bool,
}

impl ApiError {
    pub fn new(status: u16, code: Code, message: impl ToString) -> ApiError {
        ApiError {
            status,
            code,
            message: message.to_string(),
            details: Box::default(),
            retry_after_s: None,
            close: false,
        }
    }

    pub(super) fn closing(self) -> ApiError {
        ApiError { close: true, ..self }
    }

    pub(super) fn retry(self, after_s: u64) -> ApiError {
        ApiError { retry_after_s: Some(after_s), ..self }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        let (status, code) = refused.code();
        let error = ApiError { details: Box::new(refused.details()), ..ApiError::new(status, code, refused) };
        if status == 503 { error.retry(1) } else { error }
    }
}

impl From<NotAdmitted> for ApiError {
    fn from(why: NotAdmitted) -> ApiError {
        ApiError::new(403, Code::NotAdmitted, why).closing()
    }
}

impl From<Closed> for ApiError {
    fn from(closed: Closed) -> ApiError {
        match closed {
            Closed::NotServing => ApiError::new(503, Code::NotLeader, closed).retry(1),
            Closed::Refused(UpcallError::NeverSent { last, .. }) => {
                let details = Details { last: Some(last), ..Details::default() };
                ApiError { details: Box::new(details), ..ApiError::new(409, Code::NeverSent, closed) }
            }
            Closed::Refused(_) => ApiError::new(500, Code::Upcalls, closed),
        }
    }
}

pub(super) fn json_response(status: u16, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let error = Failure { code: self.code, message: self.message, details: *self.details };
        let mut response = json_response(self.status, json!(Failed { error }).to_string());
        let headers = response.headers_mut();
        if let Some(after_s) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after_s));
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response<Body> {
        let mut response = json_response(self.status, self.body);
        if self.stale {
            response.headers_mut().insert(STALE, HeaderValue::from_static("1"));
        }
        response
    }
}

// SPDX-License-Identifier: Apache-2.0
//! From a request to the decision loop and back.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, RawPathParams, Request as HttpRequest};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use fide_controller_api::event::{Batch, Lost, Numbered};
use fide_controller_api::failure::Details;
use fide_controller_api::limits::POLL_WAIT_MAX_MS;
use fide_controller_api::paths::{AFTER, UPCALLS, WAIT_MS};
use fide_controller_api::sequence::Sequence;
use fide_controller_api::{Code, Method};
use fide_types::Time;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Value, json};

use super::ApiError;
use super::connection::{Connection, Context, guard};
use super::error::json_response;
use crate::handler::{Peer, Request, Route};
use crate::sequence;
use crate::shell::Reply;

/// All paths of the handler, and ours.
pub(super) fn router(context: &Arc<Context>) -> Router {
    let mut router = Router::new();
    let mut known = vec![format!("GET {UPCALLS}")];
    for route in context.request_sender.routes().iter().copied() {
        known.push(format!("{} {}", route.method.as_str(), route.path));
        let context = context.clone();
        let filter = match route.method {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Put => MethodFilter::PUT,
            Method::Delete => MethodFilter::DELETE,
        };
        let serve = move |peer: Peer, parameters: RawPathParams, request: HttpRequest| async move {
            ask(&context, route, peer, &parameters, request).await
        };
        router = router.route(route.path, on(filter, serve));
    }
    let polling = context.clone();
    let poll = move |peer: Peer, connection: Connection, query: Result<Query<Vec<(String, String)>>, _>| async move {
        upcalls(&polling, peer, &connection, query.map(|Query(query)| query)).await
    };
    let known: Arc<str> = known.join(", ").into();
    let no_path = {
        let known = known.clone();
        move |request: HttpRequest| async move {
            let path: String = request.uri().path().chars().take(200).collect();
            ApiError::new(404, Code::NoSuchPath, format!("there is no {path}; there are {known}"))
        }
    };
    let no_method = move |request: HttpRequest| async move {
        let message = format!("{} does nothing here; there are {known}", request.method());
        ApiError::new(405, Code::NoSuchMethod, message)
    };
    router.route(UPCALLS, get(poll)).fallback(no_path).method_not_allowed_fallback(no_method).layer(from_fn(guard))
}

async fn ask(
    context: &Context,
    route: Route,
    peer: Peer,
    parameters: &RawPathParams,
    request: HttpRequest,
) -> Result<Reply, ApiError> {
    if !route.roles.contains(&peer.identity.role) {
        let roles: Vec<&str> = route.roles.iter().map(|role| role.as_str()).collect();
        let message = format!("{} must not use it; it is for the role {}", peer.identity, roles.join(" or "));
        return Err(ApiError::new(403, Code::Forbidden, message));
    }
    let (parts, body) = request.into_parts();
    let sequence = match route.method {
        Method::Get => None,
        _ => Some(sequence_of(&parts)?),
    };
    let Query(query) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
        .map_err(|e| ApiError::new(400, Code::BadQuery, format!("{e}; write ?KEY=VALUE&KEY=VALUE")))?;
    let bytes = match route.method {
        Method::Get => Vec::new(),
        _ => read(context, body).await?,
    };
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let digest = sequence::digest(route.method.as_str(), target, &bytes);
    let body = if bytes.is_empty() { Value::Null } else { parse(&parts, &bytes)? };
    let parameters = parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let request = Request { method: route.method, path: route.path, parameters, query, body, sequence };
    Ok(context.request_sender.ask(peer, request, digest).await?)
}

fn sequence_of(parts: &Parts) -> Result<Sequence, ApiError> {
    let mut values = parts.headers.get_all(fide_controller_api::sequence::HEADER).iter();
    let missing = "a changing request needs one header Fide-Sequence: INCARNATION.NUMBER, as in 3.1 for the first one";
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(ApiError::new(400, Code::SequenceMissing, missing));
    };
    let text = value.to_str().map_err(|_| ApiError::new(400, Code::BadSequence, missing))?;
    text.parse().map_err(|e| ApiError::new(400, Code::BadSequence, e))
}

async fn read(context: &Context, body: Body) -> Result<Vec<u8>, ApiError> {
    let limits = &context.limits;
    let all = Limited::new(body, limits.body_bytes).collect();
    match tokio::time::timeout(limits.body_timeout, all).await {
        Ok(Ok(body)) => Ok(body.to_bytes().into()),
        Ok(Err(why)) if why.downcast_ref::<LengthLimitError>().is_some() => {
            let message = format!("a body has at most {} bytes; send less", limits.body_bytes);
            Err(ApiError::new(413, Code::BodyTooLarge, message).closing())
        }
        Ok(Err(why)) => Err(ApiError::new(400, Code::BadBody, format!("the body cannot be read: {why}")).closing()),
        Err(_) => {
            let message = format!("the body did not come within {}; send it at once", Time::from(limits.body_timeout));
            Err(ApiError::new(408, Code::BodyTooSlow, message).closing())
        }
    }
}

fn parse(parts: &Parts, bytes: &[u8]) -> Result<Value, ApiError> {
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return Err(ApiError::new(415, Code::NotJson, "a body must be JSON; send Content-Type: application/json"));
    }
    // Names line and column.
    serde_json::from_slice(bytes).map_err(|e| {
        let details = Details { line: Some(e.line()), column: Some(e.column()), ..Details::default() };
        ApiError {
            details: Box::new(details),
            ..ApiError::new(400, Code::BadJson, format!("the body is no JSON: {e}"))
        }
    })
}

async fn upcalls<E: ToString>(
    context: &Context,
    peer: Peer,
    connection: &Connection,
    query: Result<Vec<(String, String)>, E>,
) -> Result<Response, ApiError> {
    let bad = |why: String| {
        let right = format!("ask GET {UPCALLS}?after=N&wait_ms=M, M up to {POLL_WAIT_MAX_MS}");
        ApiError::new(400, Code::BadQuery, format!("{why}; {right}"))
    };
    let (mut after, mut wait_ms) = (None, None);
    for (key, value) in query.map_err(|e| bad(e.to_string()))? {
        let place = match key.as_str() {
            AFTER => &mut after,
            WAIT_MS => &mut wait_ms,
            _ => return Err(bad("only `after` and `wait_ms` are known".into())),
        };
        let number = value.parse::<u64>().map_err(|e| bad(format!("`{key}` is no number ({e})")))?;
        if place.replace(number).is_some() {
            return Err(bad(format!("`{key}` is given twice")));
        }
    }
    let after = after.ok_or_else(|| bad("`after` is missing".into()))?;
    let wait_ms = wait_ms.unwrap_or(0);
    if wait_ms > POLL_WAIT_MAX_MS {
        return Err(bad(format!("`wait_ms` is {wait_ms}")));
    }
    let Some(_held) = context.peers.poll(peer.identity) else {
        let message = format!("{} of your polls wait already; one is enough", context.limits.polls_per_peer);
        return Err(ApiError::new(429, Code::TooManyPolls, message).retry(1));
    };
    let batch = tokio::select! {
        batch = context.request_sender.board().poll(peer.identity, after, Duration::from_millis(wait_ms)) => batch?,
        () = context.end() => {
            return Err(ApiError::new(503, Code::Stopping, "this controller is stopping; ask again in a moment").retry(1).closing());
        }
    };
    // The certificate may have been withdrawn while it waited.
    connection.admit()?;
    let events = batch.events.into_iter().map(|event| Numbered {
        number: event.number,
        event: serde_json::from_str(&event.body).unwrap_or(Value::String(event.body)),
    });
    let lost = batch.lost.map(|(first, last)| Lost { first, last });
    Ok(json_response(200, json!(Batch { lost, events: events.collect() }).to_string()).into_response())
}

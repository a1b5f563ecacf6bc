// SPDX-License-Identifier: Apache-2.0
//! `INFO fide`: the facts of FIDE.STATUS, one a line, for programs that watch servers by INFO.

use std::ffi::{CString, c_int};

use redis_module::raw;
use serde_json::Value;

use super::{status, with_state};
use crate::redis::{Ctx, api};

/// The fields of a status: those of objects in it with the object's name in front, lists with commas.
fn flatten(name: &str, value: &Value, each: &mut dyn FnMut(&str, String)) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field.clone() } else { format!("{name}_{field}") };
                flatten(&name, value, each);
            }
        }
        Value::Array(values) => {
            let words: Vec<String> = values.iter().map(text).collect();
            each(name, words.join(","));
        }
        value => each(name, text(value)),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

unsafe extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // In a crash the state may be in use.
    if for_crash_report != 0 {
        return;
    }
    let Some(status) = with_state(status::value) else { return };
    api!(RedisModule_InfoAddSection(ctx, std::ptr::null()));
    flatten("", &status, &mut |name, text| {
        // A line cannot have the end of one in it.
        let text = text.replace(['\0', '\r', '\n'], " ");
        let (name, text) = (CString::new(name).unwrap_or_default(), CString::new(text).unwrap_or_default());
        api!(RedisModule_InfoAddFieldCString(ctx, name.as_ptr(), text.as_ptr()));
    });
}

/// # Errors
/// Redis refuses the section.
pub(super) fn register(ctx: Ctx) -> Result<(), String> {
    if api!(RedisModule_RegisterInfoFunc(ctx.0, Some(on_info))) != 0 {
        return Err("Redis refuses the section of INFO".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists_become_lines() {
        let status =
            serde_json::json!({"mode": "leader", "view": 3, "members": ["h1", "h2"], "commit_us": {"p50": 1.5}});
        let mut lines = Vec::new();
        flatten("", &status, &mut |name, text| lines.push(format!("{name}:{text}")));
        lines.sort();
        assert_eq!(lines, ["commit_us_p50:1.5", "members:h1,h2", "mode:leader", "view:3"]);
    }
}

// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// The bounds of a request's form. Texts are in bytes.
const (
	maxName           = 255 // task, key, subject, worker_id, target_summary
	maxTool           = 128
	maxRelated        = 32 // depends_on, distinct_from, accept_schemas, candidates
	maxAttributes     = 32
	maxAttributeValue = 1024
	maxWait           = 60 * time.Second
	minLease          = time.Second
	maxRetryAfter     = 24 * time.Hour
	defaultPage       = 50
	maxPage           = 500
)

// The rules that more than one field has.
const (
	ruleName       = "must be 1 to 255 printable ASCII characters without space"
	ruleReserved   = "must not be one of null, undefined, None, nil"
	ruleText       = "must be at most 255 bytes without control characters"
	ruleUUID       = "must be a UUID in its canonical lower-case form"
	ruleTool       = "must be a letter followed by up to 127 letters, digits, '.', '_' or '-'"
	ruleRequired   = "must be set"
	ruleEnum       = "must be a value that this release knows"
	ruleTime       = "must be a valid time"
	ruleRetryAfter = "must be at least 0s and at most 24h"
	ruleFailure    = "must be DECLINED or INVALID"

	ruleDownstreamKey = "must be 32 lower-case hex digits"
)

// form gathers everything that is wrong with the form of one request.
type form struct{ violations []ledger.Violation }

func (f *form) want(ok bool, field, rule string) bool {
	if !ok {
		f.violations = append(f.violations, ledger.Violation{Field: field, Rule: rule})
	}
	return ok
}

// err is nil, or the refusal of the whole request.
func (f *form) err() error {
	if len(f.violations) == 0 {
		return nil
	}
	return &ledger.Refusal{Err: ledger.ErrValidation, Violations: f.violations}
}

func (f *form) tool(field, s string) bool { return f.want(isTool(s), field, ruleTool) }

func isTool(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		other := c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
		if !letter && (i == 0 || !other) {
			return false
		}
	}
	return s != "" && len(s) <= maxTool
}

// name checks tasks and keys: what programs print for "no value" is a bug of the caller's, and would make strangers share a key.
func (f *form) name(field, s string) {
	if f.want(isName(s), field, ruleName) {
		f.want(!slices.Contains([]string{"null", "undefined", "None", "nil"}, s), field, ruleReserved)
	}
}

func isName(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// text checks what people wrote; it may be empty.
func (f *form) text(field, s string) {
	f.want(len(s) <= maxName && isPrintable(s), field, ruleText)
}

func isPrintable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

func (f *form) uuid(field, s string) {
	id, err := uuid.Parse(s)
	f.want(err == nil && id.String() == s && id != uuid.Nil, field, ruleUUID)
}

// operationID checks the form only: a UUID that can be no operation's is one that does not exist.
func (f *form) operationID(field, s string) ledger.OperationID {
	id, err := ledger.ParseOperationID(s)
	f.want(err == nil, field, ruleUUID)
	return id
}

func (f *form) operationIDs(field string, texts []string) []ledger.OperationID {
	if !f.want(len(texts) <= maxRelated, field, "must name at most 32 operations") {
		return nil
	}
	var ids []ledger.OperationID
	for i, text := range texts {
		id := f.operationID(fmt.Sprintf("%s[%d]", field, i), text)
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// known checks an enumeration's value; zero is allowed where it means something.
func (f *form) known(field string, v protoreflect.Enum, zero bool) {
	n := v.Number()
	f.want(v.Descriptor().Values().ByNumber(n) != nil && (zero || n != 0), field, ruleEnum)
}

// lease checks a wished length; unset is the contract's default.
func (f *form) lease(field string, d *durationpb.Duration, longest time.Duration) time.Duration {
	if d == nil {
		return 0
	}
	lease := d.AsDuration()
	f.want(d.IsValid() && lease >= minLease && lease <= longest, field, fmt.Sprintf("must be at least %v and at most %v", minLease, longest))
	return lease
}

func (f *form) wait(d *durationpb.Duration) time.Duration {
	wait := d.AsDuration()
	f.want(d == nil || d.IsValid() && wait >= 0 && wait <= maxWait, "wait", "must be at least 0s and at most 60s")
	return wait
}

func (f *form) retryAfter(field string, d *durationpb.Duration) time.Duration {
	after := d.AsDuration()
	f.want(d == nil || d.IsValid() && after >= 0 && after <= maxRetryAfter, field, ruleRetryAfter)
	return after
}

// pageSize is how many a page has at most.
func (f *form) pageSize(size int32) int {
	f.want(size >= 0 && size <= maxPage, "page_size", "must be at least 0 and at most 500")
	if size == 0 {
		return defaultPage
	}
	return int(size)
}

// time reads a time, cut to the microseconds that stores keep.
func (f *form) time(field string, t *timestamppb.Timestamp) time.Time {
	if t == nil || !f.want(t.IsValid(), field, ruleTime) {
		return time.Time{}
	}
	return t.AsTime().Truncate(time.Microsecond)
}

func (f *form) schemas(field string, names []string) {
	f.want(len(names) <= maxRelated, field, "must name at most 32 schemas")
	f.want(!slices.ContainsFunc(names, func(s string) bool { return len(s) > maxName || !isPrintable(s) }), field, ruleText)
}

// attributes keeps those that the contract declares. The others are dropped without a word: a caller need not know the contract.
func (f *form) attributes(field string, given map[string]string, declared []string) map[string]string {
	f.want(len(given) <= maxAttributes, field, "must have at most 32 entries")
	kept := map[string]string{}
	for _, name := range declared {
		if value, ok := given[name]; ok {
			f.want(len(value) <= maxAttributeValue && isPrintable(value), field+"."+name, "must be at most 1024 bytes without control characters")
			kept[name] = value
		}
	}
	return kept
}

// key checks an operation's key. The subject's right is not a matter of form.
func (f *form) key(k *pb.OperationKey) ledger.Key {
	if !f.want(k != nil, "key", ruleRequired) {
		return ledger.Key{}
	}
	f.tool("key.tool", k.GetTool())
	f.name("key.task", k.GetTask())
	f.name("key.key", k.GetKey())
	f.text("key.subject", k.GetSubject())
	return ledger.Key{Tool: ledger.Tool(k.GetTool()), Task: ledger.Task(k.GetTask()), Key: k.GetKey(), Subject: k.GetSubject()}
}

// canonical takes up what is wrong with a JSON text. The canonicaliser's errors name rules and declared fields, never values; any other
// error is not the caller's.
func (f *form) canonical(field string, err error) error {
	var broken *fingerprint.Error
	if !errors.As(err, &broken) {
		return err
	}
	f.want(false, field, broken.Error())
	return nil
}

// resource checks a reference that evidence names.
func (f *form) resource(field string, r *pb.ResourceRef) {
	f.want(r.GetId() != "" || r.GetUri() != "", field, "must have an id or a uri")
}

// definite checks the kind of a failure that a worker or a target reports: the other kinds are the ledger's own decisions.
func (f *form) definite(field string, kind pb.FailureKind) {
	f.want(kind == pb.FailureKind_FAILURE_KIND_DECLINED || kind == pb.FailureKind_FAILURE_KIND_INVALID, field, ruleFailure)
}

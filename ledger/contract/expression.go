// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"go.yaml.in/yaml/v4"
)

// The bounds of an expression: what it costs to read, and what one evaluation may cost, in CEL's units (about 50 ns each). They bound an
// owner's mistake, not a sandbox's prisoner: contracts come from people who deploy.
const (
	maxExpression     = 2000 // bytes
	maxNodes          = 2000 // of its tree, macros expanded
	maxRegexProgram   = 500
	maxEvaluationCost = 100_000
)

// terms are what an expression may speak of.
type terms struct {
	environment func() (*cel.Env, error)
	// names for the message about an unknown one.
	names string
	// evidence are the names of which it has to use one, because what does not look at the answer says nothing about it.
	evidence []string
}

var (
	operation = []cel.EnvOption{
		cel.Variable("op.operation_id", cel.StringType),
		cel.Variable("op.tool", cel.StringType),
		cel.Variable("op.task", cel.StringType),
		cel.Variable("op.attributes", cel.MapType(cel.StringType, cel.StringType)),
	}
	answerTerms = terms{
		environment: environment(slices.Concat(operation, []cel.EnvOption{
			cel.Variable("status", cel.IntType),
			cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
			cel.Variable("body", cel.DynType),
			cel.Variable("op.downstream_key", cel.StringType),
			cel.Variable("op.first_grant_time", cel.TimestampType),
			cel.Variable("op.last_grant_time", cel.TimestampType),
			cel.Variable("op.epoch", cel.IntType),
		})),
		names:    "status, headers, body, op.operation_id, op.tool, op.task, op.downstream_key, op.attributes, op.first_grant_time, op.last_grant_time, op.epoch",
		evidence: []string{"status", "headers", "body"},
	}
	replayTerms = terms{
		environment: environment(slices.Concat(operation, []cel.EnvOption{
			cel.Variable("caller.principal", cel.StringType),
			cel.Variable("caller.scope", cel.StringType),
			cel.Variable("caller.subject", cel.StringType),
			cel.Variable("op.principal", cel.StringType),
			cel.Variable("op.scope", cel.StringType),
			cel.Variable("op.resource.type", cel.StringType),
			cel.Variable("op.resource.id", cel.StringType),
			cel.Variable("op.resource.uri", cel.StringType),
		})),
		names: "caller.principal, caller.scope, caller.subject, op.principal, op.scope, op.tool, op.task, op.operation_id, op.attributes, op.resource.type, op.resource.id, op.resource.uri",
	}
)

// environment makes one at its first use: it takes milliseconds, and most processes need one of them or none.
func environment(variables []cel.EnvOption) func() (*cel.Env, error) {
	return sync.OnceValues(func() (*cel.Env, error) {
		return cel.NewEnv(append(variables,
			cel.CustomTypeAdapter(exact{}),
			cel.DefaultUTCTimeZone(true),
			cel.ParserRecursionLimit(50),
			cel.ExpressionNodeLimit(maxNodes),
			cel.RegexProgramSizeLimit(maxRegexProgram),
			cel.ASTValidators(
				cel.ValidateComprehensionNestingLimit(1),
				cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals(),
			),
		)...)
	})
}

// kind is what an expression's value is for.
type kind struct {
	types []*cel.Type
	rule  string
}

var (
	asTruth = kind{[]*cel.Type{cel.BoolType}, "true or false"}
	// Identifiers are often numbers at their target; they are written down in digits.
	asName = kind{[]*cel.Type{cel.StringType, cel.IntType, cel.UintType}, "a text or a whole number"}
	// Null, like an empty text, says that there is none.
	asReference = kind{[]*cel.Type{cel.StringType, cel.NullType}, "a text, or null"}
	asTime      = kind{[]*cel.Type{cel.TimestampType, cel.StringType}, "a time, or a text as in RFC 3339"}
	asValue     = kind{nil, "a value that JSON has"}
)

// program is a checked expression. Any number of goroutines may evaluate it.
type program struct {
	cel cel.Program
}

var errNoValue = errors.New("the expression has no value")

// eval returns the value, or why there is none. Evaluations are bounded, and depend on nothing but the variables.
func (p *program) eval(variables map[string]any) (ref.Val, error) {
	v, _, err := p.cel.Eval(variables)
	if err == nil && types.IsUnknownOrError(v) {
		err = errNoValue
	}
	return v, err
}

// expression reads and checks an expression, if it is given; nil after a fault.
func (s section) expression(key string, t terms, k kind) *program {
	node := s.fields[key]
	if node == nil {
		return nil
	}
	text := s.text(key, maxExpression)
	if text == "" { // has been told
		return nil
	}
	p, at, rule := compile(text, t, k)
	if rule != "" {
		e := s.errorAt(node, "%s, at line %d, column %d of the expression: %s", s.path(key), at.Line(), at.Column()+1, rule)
		if node.Style&yaml.LiteralStyle != 0 { // it begins on the next line, and keeps its lines
			e.Line += at.Line()
		}
		s.faults = append(s.faults, e)
		return nil
	}
	return p
}

// start of an expression, for what concerns all of it.
var start = common.NewLocation(1, 0)

// compile checks an expression; rule says what is wrong with it, and where.
func compile(text string, t terms, k kind) (p *program, at common.Location, rule string) {
	env, err := t.environment()
	if err != nil {
		panic("contract: " + err.Error()) // the same in every process: a test builds them all
	}
	parsed, issues := env.Parse(text)
	if err := issues.Err(); err != nil {
		return nil, first(issues), "is not a CEL expression; see https://cel.dev for the language"
	}
	checked, issues := env.Check(parsed)
	if err := issues.Err(); err != nil {
		return nil, first(issues), "can't be evaluated: " + said(issues) + "; it may use " + t.names
	}
	if out := checked.OutputType(); k.types != nil && !out.IsExactType(cel.DynType) && !slices.ContainsFunc(k.types, out.IsExactType) {
		return nil, start, "must give " + k.rule + ", and gives " + out.String()
	}
	if t.evidence != nil && !uses(checked, t.evidence) {
		return nil, start, "must look at the answer; use one of " + strings.Join(t.evidence, ", ")
	}
	ready, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxEvaluationCost))
	if err != nil {
		return nil, start, "can't be evaluated: a part of it that does not depend on anything has no value"
	}
	return &program{ready}, nil, ""
}

// first is where the first fault lies.
func first(issues *cel.Issues) common.Location {
	at := issues.Errors()[0].Location
	if at.Line() < 1 || at.Column() < 0 {
		return start
	}
	return at
}

var (
	quotedPart = regexp.MustCompile(`'[^']*'`)
	// nameForm is what may be repeated of an expression: the names of variables, functions and operators, and the types of their arguments.
	nameForm  = regexp.MustCompile(`^'[A-Za-z0-9_@.(), \[\]!=<>&|+*/%?:-]{0,64}'$`)
	container = regexp.MustCompile(` \(in container '[^']*'\)`)
)

// said is what the checker says of the first fault, without the texts that the expression holds.
func said(issues *cel.Issues) string {
	text := container.ReplaceAllString(issues.Errors()[0].Message, "")
	// A pattern's own error repeats it, after a colon.
	if i := strings.IndexAny(text, ":`\""); i >= 0 && !strings.Contains(text[:i], "'") {
		text = text[:i]
	}
	return quotedPart.ReplaceAllStringFunc(text, func(part string) string {
		if nameForm.MatchString(part) {
			return part
		}
		return "'...'"
	})
}

// uses reports whether an expression refers to one of the variables.
func uses(checked *cel.Ast, names []string) bool {
	for _, r := range checked.NativeRep().ReferenceMap() {
		if slices.Contains(names, r.Name) {
			return true
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// MaxBody is how much of an answer's body is looked at, in bytes. A longer one says nothing.
	MaxBody = 1 << 20
	// maxDepth bounds how deep objects and arrays of a body are nested.
	maxDepth = 64
	// maxObserved bounds what is kept of it to be compared with the request, which has at most as much.
	maxObserved = 256 << 10
)

var errBody = errors.New("the body is not one JSON value")

// decimal is a number of a body as it is written. A double would change amounts and identifiers; what neither a whole number of 64 bits
// nor a double holds exactly is an error where an expression uses it.
type decimal string

// decode reads a body: objects as map[string]any, arrays as []any, numbers as decimal. Repeated names and invalid UTF-8 are refused,
// because who wrote the expression and who reads the body must mean the same value.
func decode(body []byte) (any, error) {
	if len(body) > MaxBody {
		return nil, errBody
	}
	d := jsontext.NewDecoder(bytes.NewReader(body))
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, errBody
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) { // more than one
		return nil, errBody
	}
	return v, nil
}

func decodeValue(d *jsontext.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errBody
	}
	token, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return token.Bool(), nil
	case '"':
		return token.String(), nil
	case '0':
		return decimal(token.String()), nil
	case '[':
		list := []any{}
		for d.PeekKind() != ']' {
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.ReadToken()
		return list, err
	default: // '{': the decoder refuses what does not belong
		object := map[string]any{}
		for d.PeekKind() != '}' {
			name, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String() // before the next read
			if object[key], err = decodeValue(d, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = d.ReadToken()
		return object, err
	}
}

// exact turns bodies into CEL's values, each part when an expression uses it.
type exact struct{}

func (a exact) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	case decimal:
		return v.value()
	default:
		return types.DefaultTypeAdapter.NativeToValue(v)
	}
}

func (d decimal) value() ref.Val {
	text := string(d)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(n)
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return types.Uint(n)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || digitsOf(text) != digitsOf(strconv.FormatFloat(f, 'e', -1, 64)) {
		return types.NewErr("a number is not exact as a double")
	}
	return types.Double(f)
}

// digitsOf is a decimal number in one form: sign, significant digits, exponent of the last of them.
func digitsOf(text string) string {
	sign := ""
	if rest, negative := strings.CutPrefix(text, "-"); negative {
		sign, text = "-", rest
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	shift, err := strconv.Atoi(exponent)
	if err != nil && exponent != "" {
		return text // an exponent beyond all bounds is like no other number
	}
	digits := strings.TrimLeft(whole+fraction, "0")
	kept := strings.TrimRight(digits, "0")
	if kept == "" {
		return "0" // whatever its sign
	}
	return sign + kept + "e" + strconv.Itoa(shift-len(fraction)+len(digits)-len(kept))
}

var errForm = errors.New("the value has no form in JSON")

// appendValue writes a value as JSON: what an expression gives to be compared with the request.
func appendValue(b []byte, v ref.Val, depth int) ([]byte, error) {
	if depth > maxDepth || len(b) > maxObserved {
		return nil, errForm
	}
	switch v := v.(type) {
	case types.Null:
		return append(b, "null"...), nil
	case types.Bool:
		return strconv.AppendBool(b, bool(v)), nil
	case types.Int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case types.Uint:
		return strconv.AppendUint(b, uint64(v), 10), nil
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, errForm
		}
		return strconv.AppendFloat(b, float64(v), 'g', -1, 64), nil
	case types.String:
		return jsontext.AppendQuote(b, string(v))
	case types.Timestamp:
		return jsontext.AppendQuote(b, v.UTC().Format(time.RFC3339Nano))
	case traits.Mapper:
		return appendMap(b, v, depth)
	case traits.Lister:
		b = append(b, '[')
		for i := v.Iterator(); i.HasNext() == types.True; {
			if b[len(b)-1] != '[' {
				b = append(b, ',')
			}
			var err error
			if b, err = appendValue(b, i.Next(), depth+1); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	default:
		return nil, errForm
	}
}

func appendMap(b []byte, m traits.Mapper, depth int) ([]byte, error) {
	var keys []string
	for i := m.Iterator(); i.HasNext() == types.True; {
		key, ok := i.Next().(types.String)
		if !ok {
			return nil, errForm
		}
		keys = append(keys, string(key))
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = jsontext.AppendQuote(b, key); err != nil {
			return nil, err
		}
		if b, err = appendValue(append(b, ':'), m.Get(types.String(key)), depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
	"regexp"
)

const (
	// CategoryOther is the category of every field without a declared one.
	CategoryOther = "other"
	// CategoryRelation is the category of the [Relations]. No
	// field can be in it.
	CategoryRelation = "relation"
)

// Rules are what a tool's contract says about the fields of its requests. The
// zero value is valid: every field counts as it is, in [CategoryOther].
type Rules struct {
	// Fields declares top-level fields by their name.
	Fields map[string]Field
}

// Field is the declaration of one top-level field.
type Field struct {
	// Category groups fields for people: "amount", "recipient". Empty means
	// [CategoryOther].
	Category string
}

var categoryName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// Validate reports the first declaration that cannot be used, by its category:
// a category is 1 to 32 lower-case letters, digits and underscores, begins with
// a letter, and is not [CategoryRelation]. Contracts are checked once, when
// they are loaded. Canonicalize itself accepts any Rules; fields in the reserved
// category then count as [CategoryOther].
func (r Rules) Validate() error {
	for name, field := range r.Fields {
		switch {
		case name == "":
			return errors.New("a declared field has an empty name")
		case field.Category == CategoryRelation:
			return fmt.Errorf("field %q: category %q is reserved", name, CategoryRelation)
		case field.Category != "" && !categoryName.MatchString(field.Category):
			return fmt.Errorf("field %q: a category is 1 to 32 of a-z, 0-9 and _, beginning with a letter", name)
		}
	}
	return nil
}

func (r Rules) category(field string) string {
	c := r.Fields[field].Category
	if c == "" || c == CategoryRelation {
		return CategoryOther
	}
	return c
}

// fieldsOf counts the declared fields of a category.
func (r Rules) fieldsOf(category string) int {
	n := 0
	for name := range r.Fields {
		if r.category(name) == category {
			n++
		}
	}
	return n
}

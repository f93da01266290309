// SPDX-License-Identifier: Apache-2.0

package contract

import _ "embed"

// Schema is the JSON Schema (draft 2020-12) of a file, for editors. It knows every key; what it can't say (windows against each other,
// expressions) Parse judges.
//
//go:embed contract.schema.json
var Schema []byte

// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/opsledger/opsledger/ledger"
)

const (
	// recentIntents bounds what is remembered: about 2 MiB.
	recentIntents = 8192
	// recentKeys of one intent are told from further ones.
	recentKeys = 4
)

// intent stands for what is to be done, whatever its key: scope, subject, task, tool and the keyed digest of the request.
type intent [sha256.Size]byte

func intentOf(key ledger.Key, digest [32]byte) intent {
	var usual [512]byte
	text := usual[:0]
	for _, part := range []string{string(key.Scope), key.Subject, string(key.Task), string(key.Tool)} {
		text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
	}
	return sha256.Sum256(append(text, digest[:]...))
}

// lookAlikes are the intents that this instance saw last, each with the operations that are its keys'. It is there to count, not to refuse:
// nothing is wrong with two operations alike, but many of them say that somebody draws a new key for each attempt.
type lookAlikes struct {
	mu     sync.Mutex
	seen   map[intent]*[recentKeys]ledger.OperationID // the latest first
	recent []intent                                   // in a ring, the oldest at next once it is full
	next   int
}

func newLookAlikes() *lookAlikes {
	return &lookAlikes{seen: map[intent]*[recentKeys]ledger.OperationID{}}
}

// see notes an operation, and says whether it is one more of its intent.
func (l *lookAlikes) see(i intent, id ledger.OperationID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids, known := l.seen[i]
	switch {
	case !known:
		l.remember(i)
		l.seen[i] = &[recentKeys]ledger.OperationID{id}
		return false
	case slices.Contains(ids[:], id):
		return false
	}
	copy(ids[1:], ids[:])
	ids[0] = id
	return true
}

// remember makes room for an intent.
func (l *lookAlikes) remember(i intent) {
	if len(l.recent) < recentIntents {
		l.recent = append(l.recent, i)
		return
	}
	delete(l.seen, l.recent[l.next])
	l.recent[l.next] = i
	l.next = (l.next + 1) % len(l.recent)
}

// lookAlike says whether a Claim that was answered, or refused for one, is for work that another key is there for already. What only reads may be done as often
// as anybody likes.
func (s *Server) lookAlike(cmd ledger.Claim, id ledger.OperationID, request ledger.Request, a ledger.Answer) bool {
	if contract, _ := s.ledger.Contract(cmd.Key.Tool); contract.Effect == ledger.Read {
		return false
	}
	var digest [32]byte
	if a.Operation != nil {
		digest = a.Operation.Fingerprint.Digest
	} else if f, err := request.Fingerprint(nil); err == nil { // blocked or refused: nothing is stored
		digest = f.Digest
	} else {
		return false
	}
	return s.alike.see(intentOf(cmd.Key, digest), id)
}

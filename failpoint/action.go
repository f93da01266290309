// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// unlimited is the count of a step that holds for all later hits.
const unlimited = -1

// Action is what a point does when it is hit.
type Action struct {
	count int
	do    func(context.Context, Name) error
}

// Times limits the action to the next n hits; the step after it follows.
func (a Action) Times(n int) Action {
	a.count = n
	return a
}

// Off does nothing.
func Off() Action { return Action{count: unlimited} }

// Panic panics with the point's name.
func Panic() Action {
	return Call(func(_ context.Context, name Name) error { panic("failpoint: " + string(name)) })
}

// Sleep waits for d, or until the context ends, whose error it then returns.
func Sleep(d time.Duration) Action {
	return Call(func(ctx context.Context, name Name) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("failpoint %s: %w", name, context.Cause(ctx))
		}
	})
}

// Hold makes a file, and waits until somebody has removed it or the context ends, whose error it then returns: a barrier for tests of other
// processes.
func Hold(path string) Action {
	return Call(func(ctx context.Context, name Name) error {
		err := os.WriteFile(path, nil, 0o600)
		look := time.NewTicker(5 * time.Millisecond)
		defer look.Stop()
		for err == nil {
			select {
			case <-look.C:
				_, err = os.Stat(path)
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("failpoint %s: %w", name, err)
	})
}

// Error returns an error that is [ErrInjected]. At an after-commit point this
// is "executed, then failed".
func Error() Action {
	return Call(func(_ context.Context, name Name) error {
		return fmt.Errorf("failpoint %s: %w", name, ErrInjected)
	})
}

// Exit ends the process with the code, without running deferred calls.
func Exit(code int) Action {
	return Call(func(context.Context, Name) error {
		os.Exit(code)
		return nil
	})
}

// Kill ends the process by SIGKILL and does not return.
func Kill() Action {
	return Call(func(context.Context, Name) error {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic("failpoint: the process cannot kill itself")
		}
		select {} // the signal may arrive a moment later; nothing may run meanwhile
	})
}

// Call runs f, which may block: a barrier for tests in the same process. Hit
// returns its error.
func Call(f func(context.Context, Name) error) Action {
	return Action{count: unlimited, do: f}
}

// parse reads the value of the variable. Its errors name the entry by its
// place and the rule that it breaks, not the text.
func parse(value string) (map[Name][]Action, error) {
	plans := map[Name][]Action{}
	for i, entry := range strings.Split(value, ";") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		name, text, ok := strings.Cut(entry, "=")
		if !ok {
			return nil, fmt.Errorf("entry %d: must be name=action", i+1)
		}
		point := Name(strings.TrimSpace(name))
		if !isRegistered(point) {
			return nil, fmt.Errorf("entry %d: the name is not registered", i+1)
		}
		if _, twice := plans[point]; twice {
			return nil, fmt.Errorf("entry %d: the name was given before", i+1)
		}
		for _, step := range strings.Split(text, "->") {
			act, err := parseAction(strings.TrimSpace(step))
			if err != nil {
				return nil, fmt.Errorf("entry %d: %w", i+1, err)
			}
			plans[point] = append(plans[point], act)
		}
	}
	return plans, nil
}

var (
	errAction   = errors.New("the action must be panic, sleep(duration), hold(path), error, exit(code), kill or off")
	errCount    = errors.New("the count before * must be a whole number from 1")
	errDuration = errors.New("sleep takes one duration with a unit that is not negative")
	errPath     = errors.New("hold takes the path of a file")
	errCode     = errors.New("exit takes a code from 0 to 125")
)

func parseAction(text string) (Action, error) {
	count := unlimited
	if before, after, ok := strings.Cut(text, "*"); ok {
		n, err := strconv.Atoi(before)
		if err != nil || n < 1 {
			return Action{}, errCount
		}
		count, text = n, after
	}
	verb, argument, hasArgument := strings.Cut(text, "(")
	if hasArgument {
		var closed bool
		if argument, closed = strings.CutSuffix(argument, ")"); !closed {
			return Action{}, errAction
		}
	}
	var act Action
	switch {
	case verb == "sleep" && hasArgument:
		d, err := time.ParseDuration(argument)
		if err != nil || d < 0 {
			return Action{}, errDuration
		}
		act = Sleep(d)
	case verb == "hold" && hasArgument:
		if argument == "" {
			return Action{}, errPath
		}
		act = Hold(argument)
	case verb == "exit" && hasArgument:
		code, err := strconv.Atoi(argument)
		if err != nil || code < 0 || code > 125 {
			return Action{}, errCode
		}
		act = Exit(code)
	case hasArgument:
		return Action{}, errAction
	case verb == "panic":
		act = Panic()
	case verb == "error":
		act = Error()
	case verb == "kill":
		act = Kill()
	case verb == "off":
		act = Off()
	default:
		return Action{}, errAction
	}
	return act.Times(count), nil
}

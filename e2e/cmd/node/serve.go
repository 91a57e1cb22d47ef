package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
)

// service is a program that runs for as long as the tests want it to. Nothing starts it again by itself: whether it
// is up is the tests' business.
type service struct {
	name string
	args []string

	mu  sync.Mutex
	cmd *exec.Cmd
}

// start starts it, if it is not running.
func (s *service) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		return nil
	}
	file, err := os.OpenFile("/var/log/"+s.name+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.Command(s.name, s.args...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	return nil
}

// kill ends it as a crash does.
func (s *service) kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // "signal: killed" is what is wanted
	s.cmd = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// handler is what the tests call.
func (n *node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		script, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := exec.CommandContext(r.Context(), "bash", "-c", string(script)).CombinedOutput()
		answer := struct {
			Output string
			Error  string
		}{Output: string(out)}
		if err != nil {
			answer.Error = err.Error()
		}
		_ = json.NewEncoder(w).Encode(answer) // the test that went away does not miss it
	})
	mux.HandleFunc("POST /{do}/{service}", func(w http.ResponseWriter, r *http.Request) {
		s := n.services[r.PathValue("service")]
		if s == nil {
			http.NotFound(w, r)
			return
		}
		err := fmt.Errorf("cannot %s", r.PathValue("do"))
		switch r.PathValue("do") {
		case "start":
			err = s.start()
		case "kill":
			err = s.kill()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}

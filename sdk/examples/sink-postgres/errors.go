package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mink-project/mink/sdk/sink"
)

// contract gives an error of Postgres a name of the contract.
func contract(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, named := range []error{
		sink.ErrNotExist, sink.ErrAlreadyExists, sink.ErrConflict, sink.ErrFenced, sink.ErrInvalid, sink.ErrUnauthorized, sink.ErrUnavailable,
		sink.ErrUnknownOutcome, sink.ErrCorrupt, sink.ErrNoSpace, sink.ErrReadOnly, sink.ErrUnimplemented,
	} {
		if errors.Is(err, named) {
			return err
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: the sink does not have the table any more", sink.ErrNotExist)
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return fmt.Errorf("%w: %w", sink.ErrUnavailable, err)
	}
	if pg.Detail != "" {
		err = fmt.Errorf("%w: %s", err, pg.Detail)
	}
	return fmt.Errorf("%w: %w", nameOf(pg.Code), err)
}

// nameOf maps SQLSTATE codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
func nameOf(code string) error {
	switch code {
	case "53100": // disk_full
		return sink.ErrNoSpace
	case "25006": // read_only_sql_transaction
		return sink.ErrReadOnly
	case "42501": // insufficient_privilege
		return sink.ErrUnauthorized
	case "42P01", "42703", "3F000": // undefined_table, undefined_column, invalid_schema_name: somebody changed the table
		return sink.ErrCorrupt
	case "42P06", "42P07", "42701": // duplicate schema, table, column
		return sink.ErrAlreadyExists
	case "2BP01": // dependent_objects_still_exist
		return sink.ErrInvalid
	}
	switch code[:min(2, len(code))] {
	case "28": // invalid_authorization_specification
		return sink.ErrUnauthorized
	case "0A": // feature_not_supported
		return sink.ErrUnimplemented
	case "21", "22", "23", "42", "44", "54": // values, constraints, syntax, limits of an index or a row
		return sink.ErrInvalid
	case "XX": // internal_error, data_corrupted, index_corrupted
		return sink.ErrCorrupt
	}
	return sink.ErrUnavailable
}

// refusedCommit: Postgres itself answered that the transaction is rolled back. A FATAL
// error ends the session, whatever the commit came to.
func refusedCommit(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return true
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR"
}

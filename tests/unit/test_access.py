"""Access rules: principals, roles and permissions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tallybook.core.access import (
    UNRESTRICTED,
    AccessFile,
    AccessRules,
    Credentials,
    OpenAccess,
    Permission,
    Presented,
    Principal,
)
from tallybook.core.certificate_names import CertificateName, NameKind
from tallybook.core.errors import AccessDenied, Unauthenticated

READ, WRITE, KEEP, ADMINISTER = Permission.READ, Permission.WRITE, Permission.KEEP, Permission.ADMINISTER


def rule(name: str = "p", **more: object) -> dict[str, object]:
    return {"name": name, "roles": ["writer"], "certificates": [name], **more}


def rules(*principals: dict[str, object]) -> AccessRules:
    return AccessRules(AccessFile.model_validate({"principal": principals}))


def shown(*names: str) -> Credentials:
    return Credentials(tuple(map(CertificateName.parse, names)))


def by_certificate(found: AccessRules, *names: str) -> str:
    return found.principal(shown(*names)).name


# --- principals -------------------------------------------------------------------------------------------------------


def test_a_certificate_belongs_to_the_first_principal_of_the_file_that_one_of_its_names_fits():
    found = rules(
        rule("exact", certificates=["b1.example.com", "tallybook://bookie/b1", "10.0.0.1"]),
        rule("domain", certificates=["*.example.com"]),
        rule("below", certificates=["tallybook://bookie/*"]),
    )
    assert by_certificate(found, "b1.example.com") == "exact"
    assert by_certificate(found, "10.0.0.1") == "exact"
    assert by_certificate(found, "B2.Example.COM") == "domain"
    assert by_certificate(found, "*.example.com") == "domain", "a star in a certificate is a name like any other"
    assert by_certificate(found, "tallybook://bookie/b7") == "below"
    assert by_certificate(found, "tallybook://bookie/b7", "b2.example.com") == "domain", "the first of the file"
    assert by_certificate(found, "stranger", "tallybook://bookie/b1") == "exact"


def test_a_first_principal_with_an_empty_limit_excludes_a_caller_that_a_later_pattern_accepts():
    shut_out = rule("leaked", roles=["reader"], certificates=["tallybook://writer/app"], streams=[])
    found = rules(shut_out, rule("writers", certificates=["tallybook://writer/*"]))
    assert by_certificate(found, "tallybook://writer/other") == "writers"
    leaked = found.principal(shown("tallybook://writer/app"))
    with pytest.raises(AccessDenied):
        leaked.check_everywhere(READ)
    with pytest.raises(AccessDenied):
        leaked.check_stream(READ, "default", "orders", default_namespace="default")
    with pytest.raises(AccessDenied):
        leaked.check_ledger(READ, 7, "orders-1")


@pytest.mark.parametrize(
    "name",
    [
        "example.com",
        "a.b.example.com",
        ".example.com",
        "b1.example.com.evil.org",
        "evil-example.com",
        "tallybook://bookie",
        "tallybook://bookies/b1",
        "tallybook:/bookie/b1",
        "TALLYBOOK://bookie/b1",
        "",
    ],
)
def test_a_name_that_only_looks_like_a_pattern_matches_no_role(name):
    found = rules(rule("p", certificates=["*.example.com", "tallybook://bookie/*"]))
    with pytest.raises(AccessDenied, match="no principal"):
        found.principal(shown(name))


KINDS = {
    NameKind.HOST: ("bookie", "b1.example.com"),
    NameKind.ADDRESS: ("192.0.2.7", "2001:db8::7"),
    NameKind.URI: ("tallybook://admin/x", "tallybook://bookie/b1", "urn:tallybook:admin"),
}


@pytest.mark.parametrize("kind", NameKind)
def test_a_name_fits_what_is_written_for_its_kind_and_nothing_else(kind):
    found = rules(
        rule("host", certificates=["bookie", "*.example.com"]),
        rule("address", certificates=["192.0.2.7", "2001:db8::7"]),
        rule("URI", certificates=["tallybook://admin/x", "tallybook://bookie/*", "urn:tallybook:admin"]),
    )
    for meant, texts in KINDS.items():
        for text in texts:
            credentials = Credentials((CertificateName.of_kind(kind, text),))
            if meant is kind:
                assert found.principal(credentials).name == kind.value
            else:
                with pytest.raises(AccessDenied):
                    found.principal(credentials)


@pytest.mark.parametrize("rule_text", ["2001:db8::7", "2001:DB8:0:0:0:0:0:7", "2001:0db8::0007"])
@pytest.mark.parametrize("name", ["2001:db8::7", "2001:DB8:0:0:0:0:0:7"])
def test_an_address_of_ipv6_is_one_however_it_is_spelled(rule_text, name):
    assert by_certificate(rules(rule("p", certificates=[rule_text])), name) == "p"


def test_a_caller_without_credentials_is_told_so_and_no_other_is_let_in():
    found = rules(rule("p", tokens=["app"]))
    with pytest.raises(Unauthenticated):
        found.principal(Credentials())
    with pytest.raises(AccessDenied):
        found.principal(Credentials(subject="other"))
    with pytest.raises(AccessDenied):
        found.principal(Credentials(subject="p"))
    assert found.principal(Credentials(subject="app")).name == "p"
    with pytest.raises(AccessDenied):
        rules().principal(shown("any"))


def test_a_token_is_not_taken_for_a_certificate_nor_vice_versa():
    found = rules(rule("p", certificates=["app"], tokens=["other"]))
    with pytest.raises(AccessDenied):
        found.principal(Credentials(subject="app"))
    with pytest.raises(AccessDenied):
        found.principal(shown("other"))


def test_callers_of_one_principal_are_distinguished_by_their_credentials():
    found = rules(rule("p", certificates=["tallybook://writer/*"], tokens=["app"]))
    one = found.principal(shown("tallybook://writer/a"))
    other = found.principal(Credentials(subject="app"))
    assert (one.name, one.identity, other.name, other.identity) == ("p", "tallybook://writer/a", "p", "app")


def test_without_access_control_every_caller_may_do_everything():
    principal = OpenAccess().principal(Presented())
    assert principal is UNRESTRICTED
    for permission in Permission:
        principal.check_everywhere(permission)
        principal.check_stream(permission, "n", "s", default_namespace="default")
        principal.check_ledger(permission, 1, None)


# --- what they may do -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("reader", {READ}),
        ("writer", {READ, WRITE}),
        ("bookie", {READ, WRITE, KEEP}),
        ("admin", {READ, WRITE, KEEP, ADMINISTER}),
    ],
)
def test_each_role_may_do_what_it_is_for_and_no_more(role, may):
    principal = rules(rule("p", roles=[role])).principal(shown("p"))
    for permission in Permission:
        assert principal.is_authorized(permission) == (permission in may)
        if permission in may:
            principal.check_everywhere(permission)
            continue
        with pytest.raises(AccessDenied, match=f"p may not {permission.value}"):
            principal.check(permission)
        with pytest.raises(AccessDenied):
            principal.check_stream(permission, "default", "s", default_namespace="default")
        with pytest.raises(AccessDenied):
            principal.check_ledger(permission, 1, "name")


def limited(**more: object) -> Principal:
    return rules(rule("p", **more)).principal(shown("p"))


def stream(principal: Principal, namespace: str, name: str) -> bool:
    try:
        principal.check_stream(READ, namespace, name, default_namespace="default")
    except AccessDenied:
        return False
    return True


def ledger(principal: Principal, name: str | None) -> bool:
    try:
        principal.check_ledger(WRITE, 7, name)
    except AccessDenied:
        return False
    return True


@pytest.mark.parametrize(
    ("limits", "streams", "other_streams", "ledgers", "other_ledgers"),
    [
        (
            {"streams": ["orders/", "audit"]},
            ["default orders/eu", "default audit-2"],
            ["default order", "default ", "other orders/eu"],
            [],
            ["orders/eu", None],
        ),
        ({"namespaces": ["team"]}, ["team anything"], ["team2 anything", "default team"], [], ["team"]),
        ({"ledgers": ["orders-"]}, [], ["default orders-1"], ["orders-1"], ["order", "", None]),
        ({"streams": []}, [], ["default s"], [], ["l"]),
        ({"namespaces": []}, [], ["default s"], [], ["l"]),
        ({"ledgers": []}, [], ["default s"], [], ["l"]),
    ],
)
def test_a_limited_principal_has_what_its_lists_begin_and_nothing_else(
    limits, streams, other_streams, ledgers, other_ledgers
):
    principal = limited(**limits)
    assert [stream(principal, *name.split(" ")) for name in [*streams, *other_streams]] == [
        *[True] * len(streams), *[False] * len(other_streams),
    ]  # fmt: skip
    assert [ledger(principal, name) for name in [*ledgers, *other_ledgers]] == [
        *[True] * len(ledgers), *[False] * len(other_ledgers),
    ]  # fmt: skip
    with pytest.raises(AccessDenied, match="by name only"):
        principal.check_everywhere(READ)


@given(st.lists(st.text(max_size=5), max_size=3), st.text(max_size=8))
def test_a_stream_is_open_exactly_to_principals_with_a_prefix_of_its_name(prefixes, name):
    assert stream(limited(streams=prefixes), "default", name) == any(name.startswith(each) for each in prefixes)


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"principal": [rule(), rule()]},
        {"principal": [rule(roles=[])]},
        {"principal": [rule(roles=["king"])]},
        {"principal": [rule(certificates=[])]},
        {"principal": [rule(certificates=["*"])]},
        {"principal": [rule(certificates=["a*b"])]},
        {"principal": [rule(certificates=["a b"])]},
        {"principal": [rule(roles=["bookie"], streams=["a"])]},
        {"principal": [rule(roles=["admin"], namespaces=["a"])]},
        {"principal": [rule(max_requests=0)]},
        {"principal": [rule(max_bytes=1)]},
        {"principal": [rule(name="a b")]},
        {"principal": [rule(name="")]},
        {"principal": [rule(stream=["typo"])]},
        {"audience": ""},
        {"principals": []},
    ],
)
def test_rules_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ValidationError):
        AccessFile.model_validate(wrong)


def test_what_came_in_a_header_is_never_shown():
    assert "secret" not in repr(Presented(shown("host").certificate, ("Bearer secret",)))

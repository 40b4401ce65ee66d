//! Tokens that openssl signed, for keys whose private halves are gone: an oracle that is not the library under test.
//!
//! Unless the name says otherwise, the claims are sub `alice`, plan `pro`, org.id 7, issuer `https://issuer.example`,
//! audiences `api` and `web`, from second 1,000,000,000 to second 2,000,000,000.

/// The secret behind the HS256 tokens.
pub(crate) const SECRET: &str = "a-shared-secret-of-thirty-two-by";

/// The issuer's keys: one for RS256, one for ES256, one that is not for signatures, and a secret that should not be there.
pub(crate) const JWKS: &str = r#"{
  "keys": [
    {
      "kty": "RSA",
      "kid": "rsa-1",
      "alg": "RS256",
      "use": "sig",
      "n": "zJaB__5jteQvVpx7jb9-pQF-L5DCGG9qWXDF8j0k6WpvQ5xJ_g1JcCvWmVVRficZ0wXxg6AxAXSXHhQ9RWFIwpHQ32jYn7jy8azKcq3YcCiamEqUnAPU3cxeZAXkjESK-KNmKiba7mfOCvR6t3xGIBo3AZNoeJNlTYAF6un43P92ax9PHKgGDLjtt-HNwkTd8GbnZUI8HkqCk8nTsw0BnnftuH5wET5dWzGUGQG3_9LX2WMkFqWuatKD-5bi3jFtNy6OVfOQ7B4wQKR7OsYhtOJNoChABXiwDRtDjose_r13XFiSyT6UtCOPhy-d9DwA87QXR_Y8PtAhVgy9bzHb4w",
      "e": "AQAB"
    },
    {
      "kty": "EC",
      "kid": "ec-1",
      "crv": "P-256",
      "use": "sig",
      "x": "0ZdQ7j_2gitFfsXjQeq4Ex2UcVl1YvaiaA5BELNcaEg",
      "y": "RNMzftCgAAP2M_foy5ZOWQD45VfQCy5fux0FCpmqUkU"
    },
    {
      "kty": "RSA",
      "kid": "enc-1",
      "use": "enc",
      "n": "zJaB__5jteQvVpx7jb9-pQF-L5DCGG9qWXDF8j0k6WpvQ5xJ_g1JcCvWmVVRficZ0wXxg6AxAXSXHhQ9RWFIwpHQ32jYn7jy8azKcq3YcCiamEqUnAPU3cxeZAXkjESK-KNmKiba7mfOCvR6t3xGIBo3AZNoeJNlTYAF6un43P92ax9PHKgGDLjtt-HNwkTd8GbnZUI8HkqCk8nTsw0BnnftuH5wET5dWzGUGQG3_9LX2WMkFqWuatKD-5bi3jFtNy6OVfOQ7B4wQKR7OsYhtOJNoChABXiwDRtDjose_r13XFiSyT6UtCOPhy-d9DwA87QXR_Y8PtAhVgy9bzHb4w",
      "e": "AQAB"
    },
    {
      "kty": "oct",
      "kid": "oct-1",
      "k": "cHVibGljLWtub3dsZWRnZS1wdWJsaWMta25vd2xlZGdl"
    }
  ]
}"#;

pub(crate) const RS256: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYS0xIn0.eyJzdWIiOiJhbGljZSIsInBsYW4iOiJwcm8iLCJvcmciOnsiaWQiOjd9LCJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjpbImFwaSIsIndlYiJdLCJuYmYiOjEwMDAwMDAwMDAsImV4cCI6MjAwMDAwMDAwMH0.m9Skn8pOfMXfPaOqr5ogcgPjaqZdE1JUgfB-rT2sxF-93o4X-3QCz1H573y81oM0IRSyz1Zu0Z6A1QNaKokfZSrc0302Yh9_7GO7x6d7lBjqPguV5Bg8hEw-gE9NhyO9aKF034CRaBvOAEaRXS7zc5Y23SnZPfZU0m2q_7sHtr6MlClvIk_aI1OAHHBWkMOE1OJNaocs-L_ydnH1112GiN01EdYrqpvS2A_9Ep6JkUwql0L-HNWzT1rKK-UCB3B9GLCO_gckQtwYbVEsEmr_M745SpJ9pLjh2WBXIfaptU7yvtAJRHnoMEIie0fuMNuN4Pf79AD1SoRO2DM7IWqEqw";

pub(crate) const RS256_AS_ENC_KEY: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImVuYy0xIn0.eyJzdWIiOiJhbGljZSIsInBsYW4iOiJwcm8iLCJvcmciOnsiaWQiOjd9LCJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjpbImFwaSIsIndlYiJdLCJuYmYiOjEwMDAwMDAwMDAsImV4cCI6MjAwMDAwMDAwMH0.ld6VxPUZpYI354Cln-Vz5x_YK6lgmHm6KuZb4o9lscbKF_lT6DWiMhVSYVioAW-bE6U4OXJyL-V-RK5kUxIFhRlbzAUcNeHIirCyg5Nktj6F2nxx7A2UtOvynsUb_Sw-TpvWKFN7alpcMygObn0qBTYcFq3C_rjli_49ff-zLugtYZL41GUkCQa3lnVtMG1tl0XYYf-tyrKk5gBp_jp2n775IlA3h4lfd-Xnlzg8GqyIUFJcJ6USNokiD_C9IRwlI0jYmCH6znVKsAp7dGojGbIdO_sit5_SMcXsELf6aW1WyoUkfNLe5hP1N_yqphSsOoi_vhSQcqNO2Ab4ysov8A";

pub(crate) const RS256_WITHOUT_KID: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSIsInBsYW4iOiJwcm8iLCJvcmciOnsiaWQiOjd9LCJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjpbImFwaSIsIndlYiJdLCJuYmYiOjEwMDAwMDAwMDAsImV4cCI6MjAwMDAwMDAwMH0.Xnn_iHybwvqpju30qOOLRO7d7r1qty584CBQmHWwFNYKpwK_AhhqRRYg5CSKuhXOzENCPAcOxJskhAuCthqsSLTfCAj7bp07wsr61rJsn5koGtpEiNXyb8NxCg-wa8U1IwQwiifnTrGjWPibhSCupdhY73_SW06FWct5m_4atWjnjIuUFAnSIdTKWdyzTgvu0Bo8Qup2pyZNy488FGhpGJ24moSiiWq_xVmjoUbMGG-tD9HhC0TXPd2XUNKKXza-8LB6Tk-cfNADZTnLSxmyJqvUY9i1TeHjy2OR5-_Uz-mK_C8Z4asIzyalRFlyDNdJJaX4uAveez2ikpUGh3xrLw";

pub(crate) const RS256_UNKNOWN_KID: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYS0yIn0.eyJzdWIiOiJhbGljZSIsInBsYW4iOiJwcm8iLCJvcmciOnsiaWQiOjd9LCJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjpbImFwaSIsIndlYiJdLCJuYmYiOjEwMDAwMDAwMDAsImV4cCI6MjAwMDAwMDAwMH0.KdN-di1B-WNMqcDMgA3PWhkWpN-pdLJAt7u4dSMlqOD1INf5DxBLN7tcg8yNRjE_fsrpF66lpxoZTaIKJHzyZ0czUBt9mmHu_pidkQH1Clg_k2RasNQDpXTNNou9KCh8GwyIw9XIPEA409Kc-j0DOjnQJsHO5En5yThqHxw_D4kPSmaSdmTYOXjhjxPVyjLTgWH0-1hoiAJ3hkJfyJ5bK1pymu0_hpNSxqRwe6J-hJUA3B5QThRJlW9UGKga2Qs1ZGo7vsGYtbact7XnS6rTaSKJQiVOHbXO_W6YqqgegxcYuBXhGPTNmip6_25WxhLWxjqtkMuTsmGXW8cBzU-gAw";

pub(crate) const RS256_CRITICAL: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYS0xIiwiY3JpdCI6WyJiNjQiXSwiYjY0Ijp0cnVlfQ.eyJzdWIiOiJhbGljZSIsInBsYW4iOiJwcm8iLCJvcmciOnsiaWQiOjd9LCJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjpbImFwaSIsIndlYiJdLCJuYmYiOjEwMDAwMDAwMDAsImV4cCI6MjAwMDAwMDAwMH0.MY75qdLQC-xJjGUe68f3ZEgNROGE7QY_M3OObeBGIXktESKh-dyx0cSj9gtnwtKHfODWzyNLkPv8a-FPT5ctRsJtmXpNX3r93rGEGSHQEMYTB7DfISCcs6BJYV9-5QVKXJyPGWM-d9_wD_N2wzKq4_bRtAovFiH83W-kcAaeKDE299eZCOBAVnwtenq_cFd5AJjiVdi-4ciUosD506t8fYzwc1E41q0Wd9MX3OopOhKlrCBr79pojcgkPIdfxCWZvqPbCHd2Y146CPt1zMf1kwCuAPlBtOkuIvvGnB_XfjJVsb7I_6Bqdm7zmgOR2ndS1Y-oZoQvP33VBVJ6bEr66w";

pub(crate) const ES256: &str = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImVjLTEifQ.eyJzdWIiOiJhbGljZSIsInBsYW4iOiJwcm8iLCJvcmciOnsiaWQiOjd9LCJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjpbImFwaSIsIndlYiJdLCJuYmYiOjEwMDAwMDAwMDAsImV4cCI6MjAwMDAwMDAwMH0.TgNiOPfx58mHu6C8W0HZcruNRCD3ClNmwEsd7_fjsHkOkqCB2Ql0sX_EuJyrJxJbpyw-kIe3Z9jiiJOe8S20gQ";

pub(crate) const HS256: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbGljZSIsInBsYW4iOiJwcm8iLCJvcmciOnsiaWQiOjd9LCJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjpbImFwaSIsIndlYiJdLCJuYmYiOjEwMDAwMDAwMDAsImV4cCI6MjAwMDAwMDAwMH0.WTLbXMFan9GSnaBWfE1nuHORrdqSY2gNgObMAujK2Wk";

pub(crate) const HS256_WITHOUT_EXPIRY: &str =
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJyb2JvdCJ9.XcWIUY1eHgAEZmmYEfRDTRQZHzHpuYJ4C4kXAsb3_9w";

pub(crate) const HS256_EXPIRY_AS_TEXT: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSIsImV4cCI6IjIwMDAwMDAwMDAifQ.Sefg6Lo-i44ZBwcj0Blm9p9zzcbHmWxYsQrDSxaX8es";

pub(crate) const HS256_WITH_THE_PUBLIC_KEY: &str = "eyJhbGciOiJIUzI1NiIsImtpZCI6InJzYS0xIn0.eyJzdWIiOiJ2aWN0aW0ifQ.Tl8ZX6ZelaZsfh_PQlOgUNqz4QsSCy4NktFQ-Eb2kl8";

pub(crate) const HS256_WITH_THE_SET_S_SECRET: &str = "eyJhbGciOiJIUzI1NiIsImtpZCI6Im9jdC0xIn0.eyJzdWIiOiJ2aWN0aW0ifQ.b5vItqb15M3EWVJeRhKV1l4Jry3_4lbhUKnV7P0CkeM";

pub(crate) const NONE: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ2aWN0aW0ifQ.";

pub(crate) const NONE_IN_CAPITALS: &str = "eyJhbGciOiJOT05FIiwia2lkIjoicnNhLTEifQ.eyJzdWIiOiJ2aWN0aW0ifQ.";

pub(crate) const HS256_WITH_OTHER_CLAIMS: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiAidmljdGltIiwgImV4cCI6IDIwMDAwMDAwMDB9.WTLbXMFan9GSnaBWfE1nuHORrdqSY2gNgObMAujK2Wk";
